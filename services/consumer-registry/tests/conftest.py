"""The fixtures of this folder, from a module with a name of its own, as mypy asks of each."""

from registry_process import command, consumer_names, dynamodb, emulator, eventually, request_lease, serve

__all__ = ["command", "consumer_names", "dynamodb", "emulator", "eventually", "request_lease", "serve"]
