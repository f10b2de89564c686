"""Benchmarks of jobs in stages."""
