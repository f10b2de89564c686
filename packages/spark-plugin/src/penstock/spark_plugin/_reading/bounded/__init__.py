"""Bounded reads: what they read, and how it is divided among tasks."""
