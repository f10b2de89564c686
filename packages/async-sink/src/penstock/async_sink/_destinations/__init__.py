"""The services that a sink writes to."""
