"""What the console asks, how often, and what it remembers of the answers."""
