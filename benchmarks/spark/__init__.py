"""Benchmarks of Spark jobs that read, write, start and wait."""
