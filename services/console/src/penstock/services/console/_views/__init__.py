"""What the pages show, made of what the services said: no I/O, but for templates that are read once."""
