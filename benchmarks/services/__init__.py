"""Benchmarks of services, and of the emulator."""
