"""Long-lived Kinesis subscriptions and exact ranges, over gRPC."""
