"""The plain consumer, for applications without Spark."""
