"""The session that a query has on a reader: its own, or a service's."""
