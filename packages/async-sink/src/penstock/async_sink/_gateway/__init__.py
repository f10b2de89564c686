"""The sink behind a gRPC gateway: servicer and client."""
