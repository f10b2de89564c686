"""From bytes on a socket to operations and back."""
