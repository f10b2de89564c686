"""What was read and not committed yet."""
