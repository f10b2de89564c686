"""The fixtures of this folder, from a module with a name of its own, as mypy asks of each."""

from registry_homes import dynamodb, dynamodb_table, home, open_home, open_parts, open_store, parts, serving

__all__ = ["dynamodb", "dynamodb_table", "home", "open_home", "open_parts", "open_store", "parts", "serving"]
