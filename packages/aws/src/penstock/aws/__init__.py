"""AWS sessions, signed JSON calls, back-off and error classes for Penstock."""
