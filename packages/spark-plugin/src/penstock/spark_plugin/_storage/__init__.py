"""Files and small objects at any URL."""
