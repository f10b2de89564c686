"""`penstock sink stats`: what a gateway's destinations do, now and per second."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TextIO

from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2_grpc as stubs
from penstock.rpc import ClientSettings, all_pages, open_aio_channel
from penstock.services.sink_gateway._settings import KIND
from penstock.terminal import Cell, Column, Row, Screen, Table, add_json_argument, positive_seconds, size, watch

_ANSWER_SECONDS: Final = 10.0
_COLUMNS: Final = (
    Column("KIND"),
    Column("DESTINATION"),
    *(
        Column(heading, justify="right")
        for heading in ("CLIENTS", "IN FLIGHT", "LIMIT", "WAITING", "RECORDS/S", "BYTES/S", "THROTTLED/S", "THROTTLED")
    ),
    *(Column(heading, justify="right") for heading in ("RECORDS", "DEAD LETTERS", "GIVEN UP")),
    Column("HELD"),
)
# Fields of the contract that only grow, and the names of their changes per second.
_RATES: Final = {
    "records_out": "goodput_per_second",
    "bytes_out": "bytes_per_second",
    "throttled": "throttled_per_second",
}

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


def add_stats_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `stats` understands."""
    parser.add_argument("destination", nargs="*", help="only destinations with this name; all when left out")
    parser.add_argument(
        "--over",
        type=positive_seconds,
        default=1.0,
        metavar="SECONDS",
        help="time between the two looks that rates are made of; default: 1",
    )
    parser.add_argument("--watch", type=positive_seconds, metavar="SECONDS", help="look again, until interrupted")
    add_json_argument(parser)
    ClientSettings.add_arguments(parser, KIND.prefix)


async def stats(
    arguments: argparse.Namespace,
    settings: ClientSettings,
    out: TextIO,
    *,
    clock: Clock = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Ask the gateway and write a row per destination.

    Raises:
        RpcOptionError: a token would cross the network in plain text.
        grpc.aio.AioRpcError: the gateway cannot be asked.
    """
    async with open_aio_channel(settings.endpoint, settings.security) as channel:
        stub = stubs.SinkGatewayServiceStub(channel)
        rates = Rates()

        async def look() -> list[Table]:
            if rates.is_new:
                rates.add(await _destinations(stub), clock())
                await sleep(arguments.over)
            found = await _destinations(stub)
            wanted = [one for one in found if not arguments.destination or one.destination in arguments.destination]
            table = stats_table(wanted, rates.add(found, clock()))
            if found and not wanted:
                table = replace(table, empty=f"no destination {', '.join(arguments.destination)} in this gateway")
            return [table]

        await watch(Screen(out, as_json=arguments.json), look, arguments.watch, sleep=sleep)


async def _destinations(stub: Any) -> Sequence[pb.DestinationStats]:
    request = pb.StatsRequest()
    answer: pb.StatsResponse = await all_pages(lambda: stub.Stats(request, timeout=_ANSWER_SECONDS), request)
    return answer.destinations


class Rates:
    """Changes per second between one look and the next."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], pb.DestinationStats] = {}
        self._at: float | None = None

    @property
    def is_new(self) -> bool:
        """Whether there was no look yet."""
        return self._at is None

    def add(self, destinations: Sequence[pb.DestinationStats], now: float) -> dict[tuple[str, str], dict[str, float]]:
        """Rates since the last look, by kind and name. A restarted gateway counts from zero."""
        seconds = now - self._at if self._at is not None else 0.0
        rates = {}
        for one in destinations:
            before = self._before.get((one.kind, one.destination), pb.DestinationStats())
            if any(getattr(one, name) < getattr(before, name) for name in _RATES):
                before = pb.DestinationStats()
            rates[one.kind, one.destination] = {
                rate: (getattr(one, name) - getattr(before, name)) / seconds if seconds > 0 else 0.0
                for name, rate in _RATES.items()
            }
        self._before = {(one.kind, one.destination): one for one in destinations}
        self._at = now
        return rates


def stats_table(destinations: Sequence[pb.DestinationStats], rates: dict[tuple[str, str], dict[str, float]]) -> Table:
    """A row per destination; the bar is what is in flight, against the limit."""
    rows = [_row(one, rates[one.kind, one.destination]) for one in destinations]
    return Table(columns=_COLUMNS, rows=rows, empty="no destinations yet: no client has written through this gateway")


def _row(one: pb.DestinationStats, rates: dict[str, float]) -> Row:
    given_up = one.rejected + one.expired
    throttled = rates["throttled_per_second"]
    share = one.in_flight_messages / one.limit_messages if one.limit_messages else 0.0
    cells: list[Cell | str] = [
        one.kind,
        one.destination,
        str(one.clients),
        Cell(str(one.in_flight_messages), share=share),
        str(one.limit_messages) if one.limit_messages else "-",
        str(one.buffered_entries + one.queued_entries),
        f"{rates['goodput_per_second']:.1f}",
        Cell(size(rates["bytes_per_second"]), raw=f"{rates['bytes_per_second']:.0f}"),
        Cell(f"{throttled:.1f}", style="yellow" if throttled else ""),
        str(one.throttled),
        str(one.records_out),
        Cell(str(one.dead_lettered), style="red" if one.dead_lettered else ""),
        Cell(str(given_up), style="red" if given_up else ""),
        Cell(_held(one), raw=f"{one.held_seconds:.0f}", style="yellow" if one.held_seconds else ""),
    ]
    fields = {field.name: getattr(one, field.name) for field in one.DESCRIPTOR.fields}
    return Row(cells, {**fields, **{name: round(value, 3) for name, value in rates.items()}})


def _held(one: pb.DestinationStats) -> str:
    """How long a record has kept the others waiting, and why."""
    if not one.held_seconds:
        return "-"
    return f"{one.held_seconds:.0f} s {one.held_error_code or one.held_reason}"
