"""Where a new query begins."""
