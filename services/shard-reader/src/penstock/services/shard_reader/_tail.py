"""`penstock-reader tail`: what is in a stream, on a terminal."""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterator
from typing import Any, Final, TextIO

import pyarrow as pa

from penstock.aws import AwsOptions
from penstock.efo_consumer import Consumer, InitialPosition
from penstock.terminal import Cell, Row, Screen, add_json_argument, positive_count

_DATA_CHARACTERS: Final = 200


def add_tail_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `tail` understands beside the flags of AWS."""
    parser.add_argument("streams", nargs="+", metavar="STREAM", help="name of a stream")
    parser.add_argument(
        "--efo", metavar="NAME", help="read by this stream consumer, registered for the time; else poll"
    )
    parser.add_argument(
        "--from",
        dest="start",
        default="LATEST",
        metavar="POSITION",
        help="LATEST, TRIM_HORIZON or a time: ISO 8601, or seconds or milliseconds since the epoch",
    )
    parser.add_argument("--count", type=positive_count, metavar="N", help="end after so many records")
    add_json_argument(parser)


async def tail(arguments: argparse.Namespace, aws: AwsOptions, out: TextIO) -> None:
    """Write records as they come."""
    left = arguments.count
    screen = Screen(out, as_json=arguments.json)
    start = _start(arguments.start)
    async with Consumer(arguments.streams, efo=arguments.efo, start=start, aws=aws, checkpoints=None) as consumer:
        async for batch in consumer:
            for row in _rows(batch.records):
                screen.show_row(_as_row(row))
                left = None if left is None else left - 1
                if left == 0:
                    return
            screen.flush()
            await consumer.commit(batch)


def _start(text: str) -> InitialPosition:
    if text.upper() in ("LATEST", "TRIM_HORIZON"):
        return InitialPosition.parse(text)
    return InitialPosition.parse("AT_TIMESTAMP", text)


def _rows(records: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    yield from records.to_pylist()


def _as_row(row: dict[str, Any]) -> Row:
    """The row in all forms; data that is no text is base64 under another name in JSON."""
    data = row["data"]
    # Control characters of a record must not reach the terminal.
    text = data[:_DATA_CHARACTERS].decode(errors="replace")
    shown = "".join(character if character.isprintable() else "\N{MIDDLE DOT}" for character in text)
    shown += "…" if len(data) > _DATA_CHARACTERS else ""
    arrived = row["approximateArrivalTimestamp"].isoformat(timespec="milliseconds")
    shard, key = f"{row['streamName']}/{row['shardId']}", repr(row["partitionKey"])
    number = row["sequenceNumber"]
    cells = [Cell(arrived, "dim"), Cell(shard, "cyan"), Cell(number, "dim"), Cell(key, "magenta"), Cell(shown)]
    return Row(cells, _as_json(row), f"{arrived} {shard} {number} {key} {shown}")


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    """The row with text in place of what JSON cannot hold."""
    data = row["data"]
    values = {name: value for name, value in row.items() if name != "data"}
    values["approximateArrivalTimestamp"] = values["approximateArrivalTimestamp"].isoformat()
    try:
        return {**values, "data": data.decode()}
    except UnicodeDecodeError:
        return {**values, "dataBase64": base64.b64encode(data).decode()}
