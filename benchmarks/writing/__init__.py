"""Benchmarks of what writes to Kinesis."""
