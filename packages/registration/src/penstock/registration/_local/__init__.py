"""The registry in the caller's own process."""
