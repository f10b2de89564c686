"""One rate-limited sink shared by many clients, over gRPC."""
