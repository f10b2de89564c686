"""What makes two results the same: code, plans and sources."""
