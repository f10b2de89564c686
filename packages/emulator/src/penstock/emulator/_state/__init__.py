"""The account, its streams and its limits: decisions without I/O."""
