"""Bytes to Arrow."""
