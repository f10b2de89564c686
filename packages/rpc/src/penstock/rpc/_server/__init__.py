"""Servers: who may call, what is listened on, and how a service runs and ends."""
