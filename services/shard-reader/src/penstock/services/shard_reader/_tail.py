"""`penstock-reader tail`: what is in a stream, on a terminal."""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Iterator
from typing import Any, Final, TextIO

import pyarrow as pa

from penstock.aws import AwsOptions
from penstock.efo_consumer import Consumer, StartingPosition

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
    parser.add_argument("--count", type=_count, metavar="N", help="end after so many records")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


async def tail(arguments: argparse.Namespace, aws: AwsOptions, out: TextIO) -> None:
    """Write records as they come."""
    left = arguments.count
    start = _start(arguments.start)
    async with Consumer(arguments.streams, efo=arguments.efo, start=start, aws=aws, checkpoints=None) as consumer:
        async for batch in consumer:
            for row in _rows(batch.records):
                out.write((json.dumps(_as_json(row)) if arguments.json else _as_text(row)) + "\n")
                left = None if left is None else left - 1
                if left == 0:
                    return
            out.flush()
            await consumer.commit(batch)


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return count


def _start(text: str) -> StartingPosition:
    if text.upper() in ("LATEST", "TRIM_HORIZON"):
        return StartingPosition.parse(text)
    return StartingPosition.parse("AT_TIMESTAMP", text)


def _rows(records: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    yield from records.to_pylist()


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    """The row with text in place of what JSON cannot hold; data that is no text is base64 under another name."""
    data = row.pop("data")
    row["approximateArrivalTimestamp"] = row["approximateArrivalTimestamp"].isoformat()
    try:
        return {**row, "data": data.decode()}
    except UnicodeDecodeError:
        return {**row, "dataBase64": base64.b64encode(data).decode()}


def _as_text(row: dict[str, Any]) -> str:
    # Control characters of a record must not reach the terminal.
    data = row["data"][:_DATA_CHARACTERS].decode(errors="replace")
    shown = "".join(character if character.isprintable() else "\N{MIDDLE DOT}" for character in data)
    more = "…" if len(row["data"]) > _DATA_CHARACTERS else ""
    arrived = row["approximateArrivalTimestamp"].isoformat(timespec="milliseconds")
    return (
        f"{arrived} {row['streamName']}/{row['shardId']} {row['sequenceNumber']} {row['partitionKey']!r} {shown}{more}"
    )
