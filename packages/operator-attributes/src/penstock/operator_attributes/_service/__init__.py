"""The scheduler behind gRPC, and for callers without an event loop."""
