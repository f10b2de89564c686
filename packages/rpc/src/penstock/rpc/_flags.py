"""Flags that can be misread: switches, numbers, and paths, for which URLs are taken."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from penstock.rpc.errors import RpcOptionError

T = TypeVar("T")


def add_switch(parser: argparse._ActionsContainer, prefix: str, name: str, text: str) -> None:
    """Add a flag without a value, which falls back to the environment variable `<prefix>_<NAME>`.

    `read_switch` makes of it what it means.

    Args:
        parser: of the command, or a group of its flags.
        prefix: of the variables of the environment.
        name: of the setting, with underscores.
        text: what the help says, before the name of the variable.
    """
    variable = f"{prefix}_{name.upper()}"
    parser.add_argument(
        "--" + name.replace("_", "-"),
        action="store_const",
        const="true",
        default=os.environ.get(variable, ""),
        help=f"{text} [{variable}=true]",
    )


def read_switch(name: str, text: str) -> bool:
    """What the word of a switch means; an empty one is false.

    Raises:
        RpcOptionError: it is neither true nor false.
    """
    if text.lower() not in ("", "true", "false"):
        raise RpcOptionError(name, f"{text!r} is neither true nor false")
    return text.lower() == "true"


def read_number(name: str, text: str, kind: Callable[[str], T], *, of: str = "a number") -> T:
    """What the text of a number means.

    Args:
        name: of the setting, with underscores.
        text: what was given.
        kind: makes a number of it.
        of: what the error says that it is not.

    Raises:
        RpcOptionError: the text is not a number.
    """
    try:
        return kind(text)
    except (ValueError, OverflowError) as error:
        raise RpcOptionError(name, f"{text!r} is not {of}") from error


def flags_in(words: Sequence[str], add: Callable[[argparse.ArgumentParser, str], None], prefix: str) -> list[str]:
    """Those of the flags that `add` gives a parser which stand in a command line; what variables say is none of it.

    Args:
        words: the command line.
        add: such as `ClientSettings.add_arguments`.
        prefix: of the variables of the environment.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add(parser, prefix)
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    return [flag for action in parser._actions for flag in action.option_strings if flag in given]


def read_path(name: str, text: str) -> Path:
    """The path of a file of this machine.

    Raises:
        RpcOptionError: it is a URL, as other services take one. It would be a path below the working folder.
    """
    scheme, colon, rest = text.partition(":")
    is_of_file = bool(colon) and scheme.lower() in ("sqlite", "file")
    if not is_of_file and "://" not in text:
        return Path(text)
    # As the registry reads it, which takes any number of slashes for one.
    path = unquote("/" + rest.lstrip("/") if rest.startswith("/") else rest)
    cure = f"write {path}" if is_of_file and path.strip("/") else "give the path of a file of this machine"
    raise RpcOptionError(name, f"takes a path, not a URL: {cure}")
