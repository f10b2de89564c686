"""The fixtures of this folder, from a module with a name of its own, as mypy asks of each."""

from emulator_world import world

__all__ = ["world"]
