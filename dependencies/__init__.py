"""The lock of all that the packages and their tests need from others, and its audit; no part of any package."""
