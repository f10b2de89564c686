"""Shard readers behind gRPC."""
