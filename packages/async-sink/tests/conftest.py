"""The fixtures of this folder, from a module with a name of its own, as mypy asks of each."""

from sink_fixtures import clock, fake, make_writer
from sink_scripted_service import service

__all__ = ["clock", "fake", "make_writer", "service"]
