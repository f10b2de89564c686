"""One reader process over 1 to 1,000 shards: processor time at the same total rate, and what an idle shard costs."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks._harness import Case
from benchmarks.reading._frame_clients import frame_server
from benchmarks.reading._frame_server import PACED_RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARDS = (1, 10, 100, 1_000)
_EVENTS_PER_SECOND = 300.0
_BUSY_SECONDS = 5.0
# Two rounds of idle events.
_IDLE_SECONDS = 10.0


def read_by_process(shards: int, events_per_second: float) -> dict[str, float]:
    """What a reader process of its own takes."""
    seconds = _BUSY_SECONDS if events_per_second else _IDLE_SECONDS
    with frame_server(events_per_second) as server:
        options = server.session.options
        command = [
            sys.executable,
            "-m",
            "benchmarks.reading._shards_reader",
            str(options.endpoint_url),
            str(options.ca_bundle),
        ]
        command += ["--shards", str(shards), "--seconds", str(seconds)]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, float] = json.loads(result.stdout)
    return measured


def _print_table(figures: dict[int, list[dict[str, float]]], idle: dict[int, dict[str, float]]) -> None:
    table = Table(title=f"one reader process at {_EVENTS_PER_SECOND * PACED_RECORDS:,.0f} records/s of 1 kB in all")
    for column in ("shards", "busy: cores", "µs a record", "resident", "idle: cores", "a shard"):
        table.add_column(column, justify="right")
    for shards, rounds in figures.items():
        middle = sorted(rounds, key=lambda one: one["cores"])[len(rounds) // 2]
        table.add_row(
            f"{shards:,}",
            f"{middle['cores']:.3f}",
            f"{middle['cpu_per_record'] * 1e6:.2f}",
            f"{middle['resident_bytes'] / 1e6:.0f} MB",
            f"{idle[shards]['cores']:.3f}",
            f"{idle[shards]['bytes_per_shard'] / 1000:.0f} kB" if shards > 1 else "",
        )
    Console().print(table)


def run(rounds: int) -> Iterator[Case]:
    """Absolute figures for all numbers of shards, then what the thousand cost over the one."""
    busy = partial(read_by_process, events_per_second=_EVENTS_PER_SECOND)
    figures: dict[int, list[dict[str, float]]] = {shards: [] for shards in SHARDS}
    for number in range(rounds):
        for shards in SHARDS if number % 2 == 0 else reversed(SHARDS):
            figures[shards].append(busy(shards))
    idle = {shards: read_by_process(shards, 0.0) for shards in SHARDS}
    _print_table(figures, idle)
    yield Case(
        name="busy-1000-over-1",
        peer_name="one-shard",
        unit="CPU µs/record",
        ours=[one["cpu_per_record"] * 1e6 for one in figures[SHARDS[-1]]],
        peers=[one["cpu_per_record"] * 1e6 for one in figures[SHARDS[0]]],
    )
    most = idle[SHARDS[-1]]
    yield Case(name="idle-1000-cores", peer_name="0.1-core", unit="cores", ours=[most["cores"]], peers=[0.1])
    yield Case(
        name="idle-1000-memory", peer_name="150-kB", unit="kB/shard", ours=[most["bytes_per_shard"] / 1000], peers=[150]
    )
