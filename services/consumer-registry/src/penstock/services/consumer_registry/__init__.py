"""Leases on stream consumers, over gRPC."""
