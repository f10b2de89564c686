"""Generated gRPC contracts of Penstock."""
