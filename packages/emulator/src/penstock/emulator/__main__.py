"""The command line: an emulator in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._config import EmulatorConfig
from ._server import EmulatorServer
from .errors import EmulatorConfigError, EmulatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _pairs(text: str) -> dict[str, str]:
    pairs = dict(pair.split("=", 1) for pair in text.split(",") if "=" in pair)
    if not pairs:
        raise argparse.ArgumentTypeError("must be NAME=VALUE, or several with commas between them")
    return pairs


def _or_none(number: Callable[[str], float]) -> Callable[[str], float | None]:
    return lambda text: None if text == "none" else number(text)


_CONVERT: dict[str, Callable[[str], Any]] = {
    "int": int,
    "int | None": _or_none(int),
    "float | None": _or_none(float),
    "float": float,
    "str": str,
    "Path | None": Path,
    "timedelta": lambda text: timedelta(seconds=float(text)),
    "Mapping[str, str]": _pairs,
    "Mapping[str, float | None]": lambda text: {name: _or_none(float)(value) for name, value in _pairs(text).items()},
    "tuple[str, ...]": lambda text: tuple(name.strip() for name in text.split(",") if name.strip()),
}
_METAVARS = {
    "timedelta": "SECONDS",
    "Path | None": "FILE",
    "Mapping[str, str]": "NAME=VALUE,...",
    "Mapping[str, float | None]": "NAME=NUMBER,...",
    "tuple[str, ...]": "NAME,...",
}
_FLAGS = {"companions": "--with"}


def build_parser() -> argparse.ArgumentParser:
    """The parser: an option for each field of `EmulatorConfig`, and those of a process."""
    parser = argparse.ArgumentParser(
        prog="penstock-emulator",
        description="An embedded Amazon Kinesis. Prints one line of JSON with its endpoints when it is ready.",
    )
    for item in fields(EmulatorConfig):
        _add_option(parser, item)
    parser.add_argument("--ready-file", type=Path, metavar="FILE", help="write the line there too, at once and whole")
    parser.add_argument(
        "--exit-with-parent", action="store_true", help="end when standard input ends, as it does when the parent dies"
    )
    return parser


def _flag(name: str) -> str:
    return _FLAGS.get(name, "--" + name.replace("_", "-"))


def _add_option(parser: argparse.ArgumentParser, item: Field[Any]) -> None:
    kind = str(item.type)
    default = (
        item.default_factory() if item.default is MISSING and item.default_factory is not MISSING else item.default
    )
    shown = default.total_seconds() if isinstance(default, timedelta) else default or "none"
    if kind == "bool":
        parser.add_argument(
            _flag(item.name),
            dest=item.name,
            action=argparse.BooleanOptionalAction,
            default=default,
            help=f"default: {default}",
        )
        return
    parser.add_argument(
        _flag(item.name),
        dest=item.name,
        type=_CONVERT[kind],
        default=default,
        metavar=_METAVARS.get(kind, kind.partition(" ")[0].upper()),
        help=f"default: {shown}",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the emulator until SIGTERM, SIGINT, or the parent's end; returns the exit code."""
    parser = build_parser()
    options = vars(parser.parse_args(arguments))
    ready_file: Path | None = options.pop("ready_file")
    exit_with_parent: bool = options.pop("exit_with_parent")
    try:
        config = EmulatorConfig(**options)
    except EmulatorConfigError as error:
        parser.error(f"{_flag(error.option)}: {error.reason}")
    try:
        asyncio.run(_run(config, ready_file=ready_file, exit_with_parent=exit_with_parent))
    except (EmulatorError, OSError) as error:
        # A port that is taken, a journal that is damaged, a companion that is not installed: no case for a traceback.
        sys.stderr.write(f"penstock-emulator: {error}\n")
        return 1
    return 0


async def _run(config: EmulatorConfig, *, ready_file: Path | None, exit_with_parent: bool) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if exit_with_parent:
        _watch_standard_input(loop, stop)
    async with EmulatorServer(config) as server:
        line = json.dumps(
            {
                "endpoint_url": server.endpoint_url,
                "tls_endpoint_url": server.tls_endpoint_url if config.tls else None,
                "ca_file": str(server.ca_file) if config.tls else None,
                "endpoints": server.endpoints,
                "pid": os.getpid(),
            }
        )
        if ready_file is not None:
            # Renamed into place: who waits for the file must not read half of it.
            part = ready_file.with_name(ready_file.name + ".part")
            part.write_text(line + "\n")
            part.replace(ready_file)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        await stop.wait()


def _watch_standard_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    def watch() -> None:
        # The descriptor itself: a thread inside sys.stdin's buffer would hold its lock at exit.
        while os.read(0, 4096):
            pass
        # The loop may have ended first.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=watch, name="watch standard input", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
