"""Channels to services: their settings, tokens and certificates that change, and how calls end."""
