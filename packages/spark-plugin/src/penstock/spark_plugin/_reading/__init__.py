"""Reading: offsets, partitions, the session that keeps the subscriptions, and its numbers."""
