"""Which streams are read, and where they begin."""
