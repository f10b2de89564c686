"""How long the tests of Spark wait."""

PATIENCE_SECONDS = 240.0
"""Deadline of a wait: what takes a few seconds on a quiet machine may take many times that on a busy one. It is below
the timeout of a test, so that a wait ends with its own message."""
