"""The commands of installed packages, and the packages that bring the other commands."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

GROUP: Final = "penstock.commands"
Main = Callable[[Sequence[str]], int]


class EntryPoint(Protocol):
    """What is needed of `importlib.metadata.EntryPoint`."""

    @property
    def name(self) -> str:
        """The name of the command."""
        ...

    @property
    def value(self) -> str:
        """Module and callable."""
        ...

    def load(self) -> object:
        """The callable. May raise anything: it imports the package."""
        ...


@dataclass(frozen=True, slots=True)
class Known:
    """A command of Penstock's own packages."""

    summary: str
    package: str
    """What to give to pip."""
    needs: tuple[str, ...] = ()
    """Modules that are there when the package was installed with what the command needs."""


# Declared here, so that the list of commands imports none of them and includes commands that are not installed.
KNOWN: Final = {
    "demo": Known("run the main job, end to end, on an embedded Kinesis", "penstock-demo"),
    "doctor": Known("find what is wrong with this set-up, and how to fix it", "penstock-cli"),
    "put": Known("put lines or files into a stream", "penstock-cli[kinesis]", ("penstock.async_sink",)),
    "streams": Known("list, describe, create and reshard streams", "penstock-cli[kinesis]", ("penstock.efo_consumer",)),
    "tail": Known("show the records of streams as they arrive", "penstock-shard-reader"),
    "lag": Known("show how far consumers and running queries are behind, shard by shard", "penstock-shard-reader"),
    "offsets": Known(
        "show, compare and reset the offsets of a Spark query's checkpoint",
        "penstock-cli[kinesis]",
        ("penstock.efo_consumer",),
    ),
    "registry": Known("list stream consumers with their holders, leases and costs", "penstock-consumer-registry"),
    "reader": Known("serve a shard reader", "penstock-shard-reader"),
    "sink": Known(
        "show the destinations of a sink gateway: limit, goodput, throttles, dead letters", "penstock-sink-gateway"
    ),
    "dead-letters": Known(
        "list, show and redrive records that could not be written", "penstock-cli[kinesis]", ("penstock.async_sink",)
    ),
    "stages": Known("list, watch, resume and explain staged jobs", "penstock-stage-scheduler"),
    "console": Known("serve web pages about consumers, streams, sinks and jobs", "penstock-console"),
    "options": Known(
        "search the options of the Spark data source",
        "penstock-spark-plugin[pyspark]",
        ("penstock.spark_plugin", "pyspark"),
    ),
    "errors": Known("show what an error means, and what to do about it", "penstock-cli"),
    "gc": Known("show and remove what killed processes left behind", "penstock-cli[gc]", ("penstock.registration",)),
    "telemetry": Known("list all spans and metrics", "penstock-telemetry"),
    "emulator": Known("run an embedded Kinesis, for tests", "penstock-emulator"),
    "completion": Known("write a script that completes commands in a shell", "penstock-cli"),
}


@dataclass(frozen=True, slots=True)
class Command:
    """A command, installed or not."""

    name: str
    summary: str
    package: str
    entry_point: EntryPoint | None

    def load(self) -> Main:
        """The callable.

        Raises:
            CommandBrokenError: its package fails on import, or has no such callable.
        """
        assert self.entry_point is not None
        try:
            loaded = self.entry_point.load()
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:
            # Whatever a package does when it is imported, also an exit, must not end the others' commands.
            raise CommandBrokenError(self.name, f"{type(error).__name__}: {error}") from error
        if not callable(loaded):
            raise CommandBrokenError(self.name, f"{self.entry_point.value} cannot be called")
        return cast(Main, loaded)


class CommandBrokenError(Exception):
    """The package of a command is installed, and does not work.

    `name` is the command's, `reason` says how it fails.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot be loaded: {reason}")
        self.name = name
        self.reason = reason


def find_commands(entry_points: Iterable[EntryPoint] | None = None) -> dict[str, Command]:
    """All commands by name: Penstock's in the order of `KNOWN`, then the commands of other packages."""
    found: dict[str, EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=GROUP) if entry_points is None else entry_points:
        found.setdefault(point.name, point)
    commands = {
        name: Command(name, known.summary, known.package, _whole(found.pop(name, None), known))
        for name, known in KNOWN.items()
    }
    for name, point in sorted(found.items()):
        distribution = getattr(getattr(point, "dist", None), "name", None)
        package = distribution or point.value.partition(":")[0]
        commands[name] = Command(name, f"from {package}", package, point)
    return commands


def _whole(point: EntryPoint | None, known: Known) -> EntryPoint | None:
    """The entry point, unless the package is there without what the command needs."""
    if point is None or not known.needs:
        return point
    try:
        return point if all(map(importlib.util.find_spec, known.needs)) else None
    except ImportError:
        return None
