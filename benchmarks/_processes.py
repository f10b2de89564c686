"""What a Spark query's processes take of the processor, from Linux' /proc."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Process:
    parent: int
    seconds: float
    """Of user and system."""
    command: str


Spent = dict[tuple[str, int], float]
"""Seconds of the processor, by part and process."""


def processor_seconds() -> Spent:
    """What each process of this one's Spark took until now.

    Parts: `driver` (this process), `jvm`, `source` (the streaming source's own process), `workers` (the rest of Python
    below the JVM).
    """
    found = _processes()
    spent = {("driver", os.getpid()): found[os.getpid()].seconds}
    for number, process in found.items():
        above = _above(number, found)
        if os.getpid() not in above:
            continue
        if any(_is_jvm(found[one]) for one in above[: above.index(os.getpid())]):
            part = "source" if "python_streaming_source_runner" in process.command else "workers"
            spent[part, number] = process.seconds
        elif _is_jvm(process):
            spent["jvm", number] = process.seconds
    return spent


def seconds_between(before: Spent, after: Spent) -> dict[str, float]:
    """Return seconds by part. A process that ended in between is left out, because its time is unknown."""
    parts: dict[str, float] = dict.fromkeys(("driver", "source", "workers", "jvm"), 0.0)
    for key, seconds in after.items():
        parts[key[0]] = parts.get(key[0], 0.0) + seconds - before.get(key, 0.0)
    return parts


def own_seconds(pid: int) -> Spent:
    """What one other process took until now, as `server`."""
    return {("server", pid): _processes()[pid].seconds}


def _is_jvm(process: _Process) -> bool:
    return "org.apache.spark" in process.command


def _above(number: int, processes: dict[int, _Process]) -> list[int]:
    above = []
    while (number := processes[number].parent) in processes:
        above.append(number)
    return above


def _processes() -> dict[int, _Process]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # The name, in parentheses, may hold anything.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:  # it ended meanwhile
                continue
            found[int(folder.name)] = _Process(int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS, command)
    return found
