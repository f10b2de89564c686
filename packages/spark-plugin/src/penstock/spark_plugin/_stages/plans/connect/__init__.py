"""Plans of a Spark Connect session, as messages."""
