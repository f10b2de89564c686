"""Who may connect and ask, for how long, and by which name."""
