"""The fixtures of this folder, from a module with a name of its own, as mypy asks of each."""

from sink_fixtures import clock, fake, make_writer

__all__ = ["clock", "fake", "make_writer"]
