"""Spark's plans, whatever kind of session they come from."""
