"""gRPC channels and servers for Penstock: TLS, mTLS, bearer token, health, reflection, drain and trace context."""
