"""Metrics and spans of writers."""
