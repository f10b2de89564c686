"""Start the service."""
