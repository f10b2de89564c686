"""The command line: an emulator in a process of its own."""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import difflib
import errno
import inspect
import itertools
import json
import os
import re
import shlex
import signal
import sys
import threading
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.emulator._config import PROFILES, Behaviour, EmulatorConfig
from penstock.emulator._server import EmulatorServer
from penstock.emulator.errors import EmulatorConfigError, EmulatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


PROG = "penstock emulator"


def _pairs(text: str) -> dict[str, str]:
    pairs = [(name.strip(), sign, value) for name, sign, value in (pair.partition("=") for pair in text.split(","))]
    if not all(name and sign for name, sign, _ in pairs) or len({name for name, *_ in pairs}) < len(pairs):
        # It is not said which: a part may be a secret.
        raise argparse.ArgumentTypeError("must be NAME=VALUE, or several with commas between them, each name once")
    return {name: value for name, _, value in pairs}


def _number(convert: Callable[[str], Any], wanted: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return convert(text)
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}") from None

    return read


def _or_none(number: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text == "none" else number(text)


_RATE = _number(_or_none(float), "a number, or none")


def _rates(text: str) -> dict[str, float | None]:
    rates: dict[str, float | None] = {}
    for name, value in _pairs(text).items():
        try:
            rates[name] = _RATE(value)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{name} {error}") from None
    return rates


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file, and {text!r} is a folder")
    return path


_CONVERT: dict[str, Callable[[str], Any]] = {
    "int": _number(int, "a whole number"),
    "int | None": _number(_or_none(int), "a whole number, or none"),
    "float | None": _RATE,
    "str": str,
    "Path | None": Path,
    "timedelta": _number(lambda text: timedelta(seconds=float(text)), "a number of seconds"),
    "Mapping[str, str]": _pairs,
    "Mapping[str, float | None]": _rates,
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


def _switches(text: str) -> dict[str, Any]:
    switches: dict[str, Any] = {}
    for name, value in _pairs(text).items():
        if value not in ("true", "false", "none"):
            try:
                switches[name] = int(value) if value.isdigit() else float(value)
            except ValueError:
                raise argparse.ArgumentTypeError(f"{name} must be true, false, none or a number") from None
        else:
            switches[name] = {"true": True, "false": False, "none": None}[value]
    return switches


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        flag = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        close = difflib.get_close_matches(flag[1], self._option_string_actions, n=1) if flag else []
        hint = f" (did you mean {close[0]}?)" if close else ""
        # One line, as Penstock's other commands: the usage of all options is a screenful.
        self.exit(2, f"{self.prog}: {message}{hint}: see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser: an option for each field of `EmulatorConfig`, and options of the process."""
    parser = _Parser(
        prog=PROG,
        description="An embedded Amazon Kinesis. Prints one line of JSON with its endpoints when it is ready; on a "
        "terminal, what to set for clients.",
    )
    parser.add_argument("--json", action="store_true", help="print the line of JSON on a terminal too")
    texts = _texts()
    for item in fields(EmulatorConfig):
        if item.name != "behaviour":
            _add_option(parser, item, texts[item.name].replace("%", "%%"))
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        help="what is done where Kinesis leaves things open; default: PENSTOCK_EMULATOR_PROFILE, or kind",
    )
    parser.add_argument(
        "--behaviour",
        type=_switches,
        default={},
        metavar="NAME=VALUE,...",
        help="fields of Behaviour that differ from the profile: true, false, none or a number of seconds",
    )
    parser.add_argument(
        "--ready-file",
        type=_file,
        metavar="FILE",
        help="write the line there too when it is ready, and remove the file at the start and the end",
    )
    parser.add_argument(
        "--exit-with-parent", action="store_true", help="end when standard input ends, as it does when the parent dies"
    )
    return parser


def _flag(name: str) -> str:
    return _FLAGS.get(name, "--" + name.replace("_", "-"))


def _texts() -> dict[str, str]:
    """What `EmulatorConfig` says of each of its fields, by the field's name."""
    (declared,) = ast.parse(inspect.getsource(EmulatorConfig)).body
    assert isinstance(declared, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(declared.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _add_option(parser: argparse.ArgumentParser, item: Field[Any], text: str) -> None:
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
            help=f"{text} Default: {default}",
        )
        return
    parser.add_argument(
        _flag(item.name),
        dest=item.name,
        type=_CONVERT[kind],
        default=default,
        metavar=_METAVARS.get(kind, kind.partition(" ")[0].upper()),
        help=f"{text} Default: {shown}",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the emulator until SIGTERM, SIGINT, or the parent's end; returns the exit code."""
    parser = build_parser()
    options = vars(parser.parse_args(arguments))
    ready_file: Path | None = options.pop("ready_file")
    exit_with_parent: bool = options.pop("exit_with_parent")
    as_json: bool = options.pop("json")
    try:
        behaviour = Behaviour.from_environment(profile=options.pop("profile"), seed=options["seed"])
    except EmulatorConfigError as error:
        parser.error(str(error))
    try:
        behaviour = behaviour.changed(options.pop("behaviour"))
    except EmulatorConfigError as error:
        parser.error(f"--behaviour: {error}")
    try:
        config = EmulatorConfig(**options, behaviour=behaviour)
    except EmulatorConfigError as error:
        parser.error(f"{_flag(error.option)}: {error.reason}")
    try:
        if ready_file is not None:
            # A file of an earlier emulator would end a wait for this one too early.
            ready_file.unlink(missing_ok=True)
        asyncio.run(_run(config, ready_file=ready_file, exit_with_parent=exit_with_parent, as_json=as_json))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            sys.stderr.write(f"{PROG}: the port is taken: choose another by --port or --tls-port; 0 takes a free one\n")
            return 2
        sys.stderr.write(f"{PROG}: {error}\n")
        return 1
    except EmulatorError as error:
        # A companion that is not installed needs no traceback.
        sys.stderr.write(f"{PROG}: {error}\n")
        return 1
    return 0


async def _run(config: EmulatorConfig, *, ready_file: Path | None, exit_with_parent: bool, as_json: bool) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if exit_with_parent:
        _watch_standard_input(loop, stop)
    async with EmulatorServer(config) as server:
        ready = {
            "endpoint_url": server.endpoint_url,
            "tls_endpoint_url": server.tls_endpoint_url if config.tls else None,
            "ca_file": str(server.ca_file) if config.tls else None,
            "endpoints": server.endpoints,
            "pid": os.getpid(),
        }
        line = json.dumps(ready)
        with _line_in(ready_file, line + "\n") if ready_file is not None else contextlib.nullcontext():
            sys.stdout.write((line if as_json or not sys.stdout.isatty() else _for_people(ready, config)) + "\n")
            sys.stdout.flush()
            await stop.wait()


@contextlib.contextmanager
def _line_in(file: Path, line: str) -> Iterator[None]:
    """Write the file, and remove it at the end."""
    # Renamed into place: a process that waits for the file must not read half of it.
    part = file.with_name(file.name + ".part")
    part.write_text(line)
    part.replace(file)
    try:
        yield
    finally:
        # Another emulator may have replaced the file.
        with contextlib.suppress(FileNotFoundError):
            if file.read_text() == line:
                file.unlink()


def _for_people(ready: dict[str, Any], config: EmulatorConfig) -> str:
    """What to paste into another terminal."""
    region, key, secret = shlex.quote(config.region), "test", "test"
    if config.verify_signatures:
        key = next(iter(config.access_keys))
        # Terminals are recorded: a secret that somebody gave stays where it is.
        secret = f"<the secret of {key}>"
    lines = [f"export AWS_ENDPOINT_URL_{name.upper()}={url}" for name, url in ready["endpoints"].items()]
    lines += [f"export AWS_ACCESS_KEY_ID={shlex.quote(key)} AWS_SECRET_ACCESS_KEY={shlex.quote(secret)}"]
    # boto3 itself reads only the second.
    lines += [f"export AWS_REGION={region} AWS_DEFAULT_REGION={region}"]
    if ready["ca_file"] is not None:
        lines += [f"# over TLS: {ready['tls_endpoint_url']}, with AWS_CA_BUNDLE={ready['ca_file']}"]
    return "\n".join(["# the emulator is ready; Ctrl+C ends it", *lines])


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
