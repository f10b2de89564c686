"""Shard readers that run as tasks on a session's executors, and the fleet that its queries find there."""
