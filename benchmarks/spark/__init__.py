"""Benchmarks of Spark jobs that read, write, or run in stages."""
