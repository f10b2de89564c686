"""A reader that its caller hosts."""
