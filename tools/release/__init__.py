"""One version over all packages: checked, raised and built together."""
