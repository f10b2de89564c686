"""Plans and progress of staged jobs, over gRPC."""
