"""What a query reports of its progress."""
