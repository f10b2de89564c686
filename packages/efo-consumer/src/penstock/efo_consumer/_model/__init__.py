"""Values that every way of reading shares."""
