"""The pages of commands and settings, from the help texts."""

import contextlib
import importlib.metadata
import io
import os
import re
from collections.abc import Iterator
from itertools import zip_longest
from unittest import mock

from reference_text import table

from penstock.cli._main import main

_CHOICES = re.compile(r"^ {2,4}\{([\w,-]+)\}", re.MULTILINE)
_OPTIONS = re.compile(r"^options:$", re.MULTILINE | re.IGNORECASE)
_VARIABLE = re.compile(r"^(.*?)\s*\[(PENSTOCK_\w+)\]$")


def commands() -> list[str]:
    """The commands of all packages."""
    return sorted({one.name for one in importlib.metadata.entry_points(group="penstock.commands")})


def help_text(*words: str) -> str:
    """Return the help text of a command at a fixed width."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "AWS_"))}
    said = io.StringIO()
    with (
        mock.patch.dict(os.environ, kept | {"COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}, clear=True),
        contextlib.redirect_stdout(said),
        contextlib.suppress(SystemExit),
    ):
        main([*words, "--help"])
    return aligned(said.getvalue().rstrip())


def aligned(text: str) -> str:
    """Convert lines with tabs into columns, without a trailing `-`."""
    rows = [line.removesuffix("\t-").split("\t") for line in text.splitlines()]
    widths = [max(map(len, column)) + 2 for column in zip_longest(*rows, fillvalue="")] if "\t" in text else []
    return "\n".join("".join(map(str.ljust, row, widths)).rstrip() for row in rows) if widths else text


def subcommands(text: str) -> list[str]:
    """Return the sub-commands that a help text lists."""
    choices = _CHOICES.search(text)
    return choices[1].split(",") if choices else []


def settings(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield flag, variable and meaning of each setting that has an environment variable."""
    options = _OPTIONS.split(text, maxsplit=1)[-1]
    for one in re.split(r"\n(?=  -)", options):
        if not one.strip():
            continue
        flag, *rest = one.strip().split(None, 1)
        words = re.sub(r"^[A-Z_]+\s+", "", " ".join("".join(rest).split()))
        if found := _VARIABLE.match(words):
            yield f"`{flag}`", f"`{found[2]}`", found[1]


def commands_page() -> str:
    """All commands and their subcommands."""
    parts = ["# Command line\n", "The help text of each command.\n", "```text", help_text(), "```\n"]
    for name in commands():
        text = help_text(name)
        parts += [f"## penstock {name}\n", "```text", text, "```\n"]
        for word in subcommands(text):
            # A choice that is not a sub-command has the same help.
            if (more := help_text(name, word)) != text:
                parts += [f"### penstock {name} {word}\n", "```text", more, "```\n"]
    return "\n".join(parts)


def settings_page() -> str:
    """The settings of each service, with their variables."""
    parts = [
        "# Settings of the services\n",
        "Each flag of `serve` has an environment variable. The flag takes precedence. Tokens come from a file or a "
        "variable, never from a flag. [Run the services](../how-to/run-the-services.md) has examples.\n",
    ]
    for name in commands():
        if "serve" in subcommands(help_text(name)):
            rows = list(settings(help_text(name, "serve")))
            if rows:
                parts += [f"## penstock {name} serve\n", table(("flag", "variable", "meaning"), rows)]
    return "\n".join(parts)
