"""Where the readers inside drivers are, and how they fare, for people who look."""
