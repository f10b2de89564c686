"""Kinesis Data Streams as a destination."""
