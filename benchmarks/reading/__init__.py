"""Benchmarks of what reads Kinesis."""
