"""Committed results on the disk, and what keeps them."""
