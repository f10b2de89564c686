"""What runs when, and how far it has come."""
