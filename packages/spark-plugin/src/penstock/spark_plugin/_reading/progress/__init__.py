"""What a query tells of its progress."""
