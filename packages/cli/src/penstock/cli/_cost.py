"""`penstock cost`: what a stream and its readers cost, by list prices."""

from __future__ import annotations

import argparse
import math
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Final

from penstock.terminal import Cell, Column, ExitCode, Parser, Row, Screen, Table, add_json_argument, positive_count

PROG: Final = "penstock cost"
HOURS_OF_MONTH: Final = 730
_KB, _MB, _GB = 2**10, 2**20, 2**30
_SHARD_RECORDS: Final = 1_000
_DAY, _WEEK = 24, 168
_PUT_UNIT: Final = 25 * _KB
_LARGEST_RECORD_BYTES: Final = 10 * _MB
"""With its key, where UpdateMaxRecordSize allows it; 1 MiB elsewhere."""
_HEARTBEATS: Final = 360
"""Writes of a lease an hour: one every 10 s."""
# Of an aggregate: its mark and digest with the table of keys, and what stands around each record in it.
_AGGREGATE_BYTES, _ENTRY_BYTES = 64, 8
_COMPARED_AGGREGATE_BYTES: Final = 51_200
_BILL: Final = (
    Column("WHAT"),
    Column("AN HOUR", justify="right"),
    Column("PRICE", justify="right"),
    Column("USD AN HOUR", justify="right"),
    Column("USD A MONTH", justify="right"),
)
_COMPARED: Final = (
    Column("STREAM"),
    Column("READERS"),
    Column("RECORDS"),
    Column("SHARDS", justify="right"),
    Column("USD AN HOUR", justify="right"),
    Column("USD A MONTH", justify="right"),
)


class PricesError(Exception):
    """A file of prices cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """List prices of a region in US dollars; `prices.toml` says what each is for."""

    as_of: str
    shard_hour: float
    put_million: float
    consumer_shard_hour: float
    consumer_gb: float
    extended_shard_hour: float
    on_demand_stream_hour: float
    on_demand_in_gb: float
    on_demand_out_gb: float
    on_demand_consumer_gb: float
    on_demand_extended_gb_month: float
    long_term_gb_month: float
    registry_write_million: float


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is written to a stream, and who reads it.

    Attributes:
        records: a second; 0 for an idle stream.
        record_bytes: of a record of the user, its key included.
        shards: open ones; None: as many as the load needs.
        on_demand: whether Kinesis sets the number of shards.
        consumers: stream consumers (enhanced fan-out).
        polling: readers that poll.
        retention_hours: of the stream.
        aggregate_bytes: of an aggregate of records; None: they are not aggregated.
        leases: that a registry in DynamoDB keeps.
    """

    records: float = 100.0
    record_bytes: int = 1_000
    shards: int | None = None
    on_demand: bool = False
    consumers: int = 0
    polling: int = 0
    retention_hours: int = _DAY
    aggregate_bytes: int | None = None
    leases: int = 0

    @property
    def stored(self) -> tuple[float, int]:
        """Records a second as Kinesis sees them, and the bytes of each."""
        if self.aggregate_bytes is None:
            return self.records, self.record_bytes
        room = self.aggregate_bytes - _AGGREGATE_BYTES
        together = max(1, room // (self.record_bytes + _ENTRY_BYTES))
        return self.records / together, _AGGREGATE_BYTES + together * (self.record_bytes + _ENTRY_BYTES)

    @property
    def open_shards(self) -> int:
        """Those given, or what a provisioned stream needs: each takes 1 MiB and 1,000 records a second.

        Each also gives 2 MiB a second to all that poll together.
        """
        records, size = self.stored
        megabytes = records * size / _MB
        needed = max(1.0, megabytes, records / _SHARD_RECORDS, megabytes * self.polling / 2)
        return self.shards or math.ceil(needed)


@dataclass(frozen=True)
class Item:
    """A line of the bill: a quantity an hour, its unit, and the price of one."""

    what: str
    quantity: float
    unit: str
    price: float

    @property
    def usd(self) -> float:
        """An hour."""
        return self.quantity * self.price


def bill(load: Load, prices: Prices) -> list[Item]:
    """What an hour costs, item by item. Calls of the API are free, but for a registry's in DynamoDB."""
    records, size = load.stored
    gb = records * size * 3_600 / _GB
    extended_hours = min(load.retention_hours, _WEEK) - _DAY
    long_gb = gb * max(0, load.retention_hours - _WEEK)
    if load.on_demand:
        rounded = records * math.ceil(size / _KB) * _KB * 3_600 / _GB
        items = [
            Item("the stream, on demand", 1, "stream-hours", prices.on_demand_stream_hour),
            Item("written", rounded, "GB", prices.on_demand_in_gb),
            Item("read by polling", gb * load.polling, "GB", prices.on_demand_out_gb),
            Item("read by consumers", gb * load.consumers, "GB", prices.on_demand_consumer_gb),
            Item(
                "kept for up to 7 days",
                gb * extended_hours,
                "GB-months / 730",
                prices.on_demand_extended_gb_month / HOURS_OF_MONTH,
            ),
        ]
    else:
        shards, units = load.open_shards, math.ceil(size / _PUT_UNIT)
        items = [
            Item("open shards", shards, "shard-hours", prices.shard_hour),
            Item("written", records * units * 3_600 / 1e6, "million PUT units", prices.put_million),
            Item("consumers", shards * load.consumers, "consumer-shard-hours", prices.consumer_shard_hour),
            Item("read by consumers", gb * load.consumers, "GB", prices.consumer_gb),
            Item("kept for up to 7 days", shards * (extended_hours > 0), "shard-hours", prices.extended_shard_hour),
        ]
    items += [
        Item("kept for longer", long_gb, "GB-months / 730", prices.long_term_gb_month / HOURS_OF_MONTH),
        Item("registry in DynamoDB", load.leases * _HEARTBEATS / 1e6, "million writes", prices.registry_write_million),
    ]
    return [one for one in items if one.quantity]


def read_prices(region: str, file: Path | None = None) -> Prices:
    """Prices of a region, ours or of a file.

    Raises:
        PricesError: the region has no prices, or the file is wrong; the error says what to do.
    """
    name = "our prices" if file is None else str(file)
    try:
        found = resources.files("penstock.cli") / "prices.toml"
        text = found.read_text() if file is None else file.read_text()
        tables = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise PricesError(f"{name} cannot be read: {error}") from error
    table = tables.get(region)
    if not isinstance(table, dict):
        raise PricesError(f"{name} have no table [{region}], only {', '.join(sorted(tables))}: give --prices FILE")
    known = {one.name for one in fields(Prices)}
    if wrong := sorted(known ^ set(table)):
        raise PricesError(f"[{region}] of {name} lacks, or does not know: {', '.join(wrong)}")
    for key, value in table.items():
        is_price = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max
        if not (isinstance(value, str) if key == "as_of" else is_price):
            raise PricesError(f"{key} in [{region}] of {name} is {value!r}, and has to be a price of 0 or more")
    return Prices(**table)


def main(argv: Sequence[str]) -> int:
    """Show a bill, or compare the ways to read and write. Returns the exit code."""
    parser = Parser(
        prog=PROG,
        description="What a stream and its readers cost by list prices, without asking AWS. Free tiers, discounts, "
        "taxes and what the machines of readers cost are not in it.",
        epilog="exit codes: 0 shown, 2 wrong usage, or prices that cannot be used",
    )
    default = Load()
    parser.add_argument("--records", type=_rate, default=default.records, metavar="N", help="a second; default: 100")
    parser.add_argument(
        "--record-bytes", type=positive_count, default=default.record_bytes, metavar="N", help="default: 1000"
    )
    parser.add_argument("--on-demand", action="store_true", help="an on-demand stream; default: provisioned")
    parser.add_argument(
        "--shards", type=positive_count, metavar="N", help="open ones of a provisioned stream; default: what is needed"
    )
    parser.add_argument("--consumers", type=_count, default=0, metavar="N", help="readers by enhanced fan-out")
    parser.add_argument("--polling", type=_count, default=0, metavar="N", help="readers that poll")
    parser.add_argument(
        "--retention-hours", type=positive_count, default=_DAY, metavar="N", help="24 to 8760; default: 24"
    )
    parser.add_argument(
        "--aggregate-bytes",
        type=positive_count,
        metavar="N",
        help="records are written in full aggregates of so many bytes; 51200 is the writer's default",
    )
    parser.add_argument("--leases", type=_count, default=0, metavar="N", help="that a registry in DynamoDB keeps")
    parser.add_argument("--region", default="us-east-1", help="whose prices; default: us-east-1")
    parser.add_argument("--prices", type=Path, metavar="FILE", help="TOML, in the form of penstock/cli/prices.toml")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="beside each other: provisioned and on demand, polling and fan-out, as they are and in aggregates",
    )
    add_json_argument(parser)
    arguments = parser.parse_args(argv)
    if not _DAY <= arguments.retention_hours <= 8_760:
        parser.error("--retention-hours is 24 to 8760")
    if max(arguments.record_bytes, arguments.aggregate_bytes or 0) > _LARGEST_RECORD_BYTES:
        parser.error(f"--record-bytes and --aggregate-bytes are at most {_LARGEST_RECORD_BYTES}: no record is larger")
    if arguments.shards is not None and arguments.on_demand:
        parser.error("--shards is of provisioned streams: an on-demand stream is billed by its bytes")
    if arguments.compare and (arguments.shards is not None or arguments.on_demand or arguments.aggregate_bytes):
        parser.error("--compare chooses streams, shards and aggregates itself")
    try:
        prices = read_prices(arguments.region, arguments.prices)
    except PricesError as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return ExitCode.USAGE
    load = Load(**{one.name: getattr(arguments, one.name) for one in fields(Load)})
    screen = Screen(sys.stdout, as_json=arguments.json)
    if arguments.compare:
        screen.show(Table(columns=_COMPARED, rows=_compared(load, prices), empty=""))
    else:
        screen.show(Table(columns=_BILL, rows=_bill_rows(load, prices), empty=""))
    screen.say(f"list prices of {arguments.region} as of {prices.as_of}; a month has {HOURS_OF_MONTH} hours", "dim")
    return ExitCode.OK


def _bill_rows(load: Load, prices: Prices) -> list[Row]:
    items = bill(load, prices)
    rows = []
    for one in items:
        document = {
            "what": one.what,
            "quantity": one.quantity,
            "unit": one.unit,
            "priceUsd": one.price,
            "usdPerHour": one.usd,
            "usdPerMonth": one.usd * HOURS_OF_MONTH,
        }
        rows.append(
            Row([one.what, f"{_quantity(one.quantity)} {one.unit}", f"{one.price:g}", *_usd(one.usd)], document)
        )
    total = sum(one.usd for one in items)
    document = {"what": "all", "usdPerHour": total, "usdPerMonth": total * HOURS_OF_MONTH}
    cells: list[Cell | str] = [Cell("all", style="bold"), "", "", *(Cell(text, style="bold") for text in _usd(total))]
    return [*rows, Row(cells, document)]


def _compared(load: Load, prices: Prices) -> list[Row]:
    readers = max(1, load.consumers + load.polling)
    rows = []
    for on_demand in (False, True):
        for by_fan_out in (False, True):
            for aggregate_bytes in (None, _COMPARED_AGGREGATE_BYTES):
                one = replace(
                    load,
                    on_demand=on_demand,
                    consumers=readers if by_fan_out else 0,
                    polling=0 if by_fan_out else readers,
                    aggregate_bytes=aggregate_bytes,
                )
                usd = sum(item.usd for item in bill(one, prices))
                document = {
                    "mode": "on-demand" if on_demand else "provisioned",
                    "readers": "efo" if by_fan_out else "polling",
                    "aggregateBytes": aggregate_bytes,
                    "shards": None if on_demand else one.open_shards,
                    "usdPerHour": usd,
                    "usdPerMonth": usd * HOURS_OF_MONTH,
                }
                words = [
                    "on demand" if on_demand else "provisioned",
                    f"{readers} by fan-out" if by_fan_out else f"{readers} polling",
                    "as they are" if aggregate_bytes is None else "aggregated",
                    "-" if on_demand else f"{one.open_shards:,}",
                ]
                rows.append(Row([*words, *_usd(usd)], document))
    return rows


def _usd(an_hour: float) -> list[str]:
    return [f"{an_hour:,.4f}", f"{an_hour * HOURS_OF_MONTH:,.2f}"]


def _quantity(quantity: float) -> str:
    """Four digits, or all of a whole number: a power of ten would have to be read twice."""
    return f"{quantity:,.0f}" if quantity >= 1_000 else f"{quantity:,.4g}"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 <= rate < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of records a second, 0 to 1e9")
    return rate
