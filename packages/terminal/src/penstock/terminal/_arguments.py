"""Command lines that look alike."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import itertools
import os
import re
import signal
import sys
import threading
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence


class ExitCode(IntEnum):
    """The same for every command of Penstock."""

    OK = 0
    """Done, and nothing is wrong."""
    FAILED = 1
    """A problem was found, or what was asked for was refused or did not succeed."""
    USAGE = 2
    """Wrong usage: a flag, a setting or a file that cannot be."""
    UNREACHABLE = 3
    """A service is not there, or cannot be talked to."""
    INTERRUPTED = 130
    """By Ctrl+C, as a shell tells the end by a signal."""


def _heading(name: str) -> str:
    # As it is written, here and by every other parser: `str.title` would make Aws of AWS.
    return name


# The name of a setting in a sentence; neither a part of a path nor of something that is quoted.
_SETTING = re.compile(r"(?<![\w./:'\"-])[a-z]+(?:_[a-z]+|[A-Z][a-z]+)+(?![\w/'\"]|\.\w)")


def describe_by_flag(error: Exception, arguments: argparse.Namespace, prefix: str, **flags: str) -> str:
    """An error about an option, in the words of the command line: by its flag and the variable behind it.

    Other settings in its text are replaced by their flags, too.

    Args:
        error: `option` names it, as other callers know it, and its text begins with that name.
        arguments: what the command understands.
        prefix: of the variables of the environment.
        flags: flags of options that have another name here.
    """
    option = getattr(error, "option", None)
    if not isinstance(option, str):
        return str(error)

    def in_words(found: re.Match[str]) -> str:
        name = _argument(found[0])
        return flags.get(found[0]) or (f"--{name.replace('_', '-')}" if hasattr(arguments, name) else found[0])

    reason = _SETTING.sub(in_words, str(error).removeprefix(f"{option}: "))
    if option in flags:
        return f"{flags[option]}: {reason}"
    name = _argument(option)
    if hasattr(arguments, name):
        return f"--{name.replace('_', '-')} ({prefix}_{name.upper()}): {reason}"
    if hasattr(arguments, f"{name}_file"):
        # A secret, which is given by a file or a variable alone.
        return f"--{name.replace('_', '-')}-file ({prefix}_{name.upper()}): {reason}"
    # An option of other callers: the reason says what is missing.
    return reason


def _argument(option: str) -> str:
    return re.sub("[A-Z]", lambda found: "_" + found[0].lower(), option).removeprefix("aws_")


_AGO = re.compile(r"-(\d{1,9})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def seconds_ago(text: str) -> int | None:
    """Of `-90s`, `-15m`, `-1h` or `-7d`: so many seconds ago; None for any other text."""
    found = _AGO.fullmatch(text.strip())
    return None if found is None else int(found[1]) * _UNITS[found[2]]


POSITIONS: Final = "LATEST, TRIM_HORIZON, a time ago (-90s, -15m, -1h, -7d)"
"""Positions in a stream that commands accept beside times, for help and errors."""


class Parser(argparse.ArgumentParser):
    """An `argparse` parser with help in colours on a terminal, and no abbreviations: scripts outlive new flags.

    A flag's value may be a time ago, such as `--from -1h`, and flags may come between words: `STREAM --key K FILE`.
    An unknown flag or sub-command is refused with the name that resembles it most.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _format_help)
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `argparse` has it, but that a time ago is not a flag of that name, and that flags part no words."""
        words: list[str] = []
        for word in sys.argv[1:] if args is None else args:
            if words and words[-1].startswith("--") and "=" not in words[-1] and seconds_ago(word) is not None:
                words[-1] += f"={word}"
            else:
                words.append(word)
        return super().parse_known_args(self._flags_first(words), namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `argparse` has it, with suggestions for unknown flags."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            self._refuse(rest)
        return found

    def add_argument(self, *names: Any, **options: Any) -> Any:
        """As `argparse` has it, but that words which may be left out are not required."""
        if options.get("nargs") == "*" and not names[0].startswith("-"):
            options.setdefault("default", [])
        return super().add_argument(*names, **options)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            hint = _similar(value, action.choices) or f" (choose from {', '.join(action.choices)})"
            raise argparse.ArgumentError(None, f"there is no command {value!r}{hint}")
        super()._check_value(action, value)

    def _refuse(self, words: Sequence[str]) -> NoReturn:
        flag = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
        self.error(f"unrecognized arguments: {' '.join(words)}{_similar(flag, self._option_string_actions)}")

    def _flags_first(self, words: list[str]) -> list[str]:
        """The words with all flags and their values before the others.

        `argparse` takes what it can for `[FILE ...]` at the first word, and refuses those behind the next flag. Left as
        they are: words of a parser with sub-commands, which have flags of their own, and those with a flag that is
        unknown or takes several values.
        """
        if any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in self._actions):
            return words
        flags: list[str] = []
        others: list[str] = []
        rest = iter(words)
        for word in rest:
            if word == "--":
                return [*flags, word, *others, *rest]
            if not word.startswith("-") or word == "-":
                others.append(word)
                continue
            name, has_value, _ = word.partition("=")
            action = self._option_string_actions.get(name)
            if action is None and name.startswith("--"):
                # Before what is missing: it may be what this flag was meant for.
                self._refuse([word, *rest])
            if action is None or action.nargs not in (None, 0):
                return words
            flags.append(word)
            if action.nargs is None and not has_value:
                flags += itertools.islice(rest, 1)
        return [*flags, *others]

    def add_subparsers(self, **options: Any) -> Any:
        """As `argparse` has it; a sub-command refuses itself what it does not know, and names its own help."""
        options.setdefault("parser_class", _CommandParser)
        return super().add_subparsers(**options)

    def error(self, message: str) -> NoReturn:
        """End the process by `ExitCode.USAGE`, with one line that says why: the usage may be a screenful."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and message.endswith(f"required: {action.dest}"):
                message = f"needs a command (choose from {', '.join(action.choices)})"
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}: see {self.prog} --help\n")


def _similar(word: str, names: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, names, n=1) if word else []
    return f" (did you mean {close[0]}?)" if close else ""


class _CommandParser(Parser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self._refuse(rest)
        return found, rest


def _format_help(**options: Any) -> argparse.HelpFormatter:
    return _formatter()(**options)


@cache
def _formatter() -> type[argparse.HelpFormatter]:
    # Only for those who ask for help: it takes a third of the time of a short command.
    from rich_argparse import RawDescriptionRichHelpFormatter

    class Formatter(RawDescriptionRichHelpFormatter):
        """Texts are ours, and brackets in them name variables: they are not markup."""

        text_markup = False
        help_markup = False
        # mypy takes the base's variable, a callable, for a method.
        group_name_formatter = staticmethod(_heading)  # type: ignore[assignment]

    return Formatter


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="write one JSON object per line, with all fields")


def run_command(command: Callable[[], int]) -> int:
    """Run a command that writes to the standard output, and give its exit code.

    An interrupt is `ExitCode.INTERRUPTED`. A reader that has seen enough (`| head`) is not an error.
    """
    # Python ends with a look for garbage in all that was imported: a sixth of the work of a short command.
    atexit.register(gc.freeze)
    try:
        with _interrupts_that_arrive():
            code = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # What is left in the buffer has nowhere to go at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    return code


@contextlib.contextmanager
def _interrupts_that_arrive() -> Iterator[None]:
    """Interrupt once more where Python drops it: in what runs as an object goes away, as it often does in an import."""
    before = sys.unraisablehook
    repeated: list[threading.Timer] = []

    def look(dropped: Any) -> None:
        if dropped.exc_type is not KeyboardInterrupt:
            before(dropped)
            return
        # A signal, which wakes the main thread, and not from here, where it would be dropped too.
        again = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        again.daemon = True
        again.start()
        repeated.append(again)

    sys.unraisablehook = look
    try:
        yield
    finally:
        sys.unraisablehook = before
        for again in repeated:
            again.cancel()


def positive_seconds(text: str) -> float:
    """The type of an argument that is a time.

    Raises:
        argparse.ArgumentTypeError: the text is not a number above zero.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def positive_count(text: str) -> int:
    """The type of an argument that is a number of things.

    Raises:
        argparse.ArgumentTypeError: the text is not a whole number above zero.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def with_default(
    argv: Sequence[str], command: str, commands: Container[str], *, takes_words: bool = False
) -> list[str]:
    """The arguments with a sub-command before them, unless they begin with one or ask for help.

    Words that are not a sub-command get none either, so that they are refused, unless the default one takes words.
    """
    first = argv[0] if argv else "-"
    is_word = not first.startswith("-")
    named = first in commands or first in ("-h", "--help") or (is_word and not takes_words)
    return [*argv] if named else [command, *argv]
