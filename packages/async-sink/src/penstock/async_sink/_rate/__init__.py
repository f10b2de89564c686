"""How fast a writer sends: rate limiting strategies."""
