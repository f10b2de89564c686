"""What decides whether records are lost."""
