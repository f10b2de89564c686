"""Streams: micro-batches, their offsets, and AvailableNow."""
