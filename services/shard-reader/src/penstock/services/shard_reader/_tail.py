"""`penstock-reader tail` and `lag`: what is in a stream, and how far behind a consumer is, on a terminal."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

import pyarrow as pa

from penstock.aws import AwsOptions, AwsSession
from penstock.efo_consumer import (
    CheckpointError,
    Consumer,
    KinesisBackend,
    ShardLag,
    SqliteCheckpointStore,
    StartingPosition,
    measure_lag,
)

_DATA_CHARACTERS: Final = 200


def add_tail_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `tail` understands beside the flags of AWS."""
    parser.add_argument("streams", nargs="+", metavar="STREAM", help="name of a stream")
    parser.add_argument(
        "--efo", metavar="NAME", help="read by this stream consumer, registered for the time; else poll"
    )
    parser.add_argument(
        "--from", dest="start", default="LATEST", metavar="POSITION", help="LATEST, TRIM_HORIZON or a time"
    )
    parser.add_argument("--count", type=int, metavar="N", help="end after so many records")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def add_lag_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `lag` understands beside the flags of AWS."""
    parser.add_argument(
        "streams", nargs="*", metavar="STREAM", help="name of a stream; all of the checkpoint when left out"
    )
    parser.add_argument("--checkpoints", type=Path, required=True, metavar="FILE", help="the consumer's checkpoints")
    parser.add_argument("--name", default="default", help="of the consumer; default: %(default)s")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="measure again, until interrupted")


async def tail(arguments: argparse.Namespace, aws: AwsOptions, out: TextIO) -> None:
    """Write records as they come."""
    left = arguments.count
    async with Consumer(arguments.streams, efo=arguments.efo, start=_start(arguments.start), aws=aws) as consumer:
        async for batch in consumer:
            for row in _rows(batch.records):
                if left is not None and left <= 0:
                    return
                out.write((json.dumps(_as_json(row)) if arguments.json else _as_text(row)) + "\n")
                left = None if left is None else left - 1
            out.flush()
            await consumer.commit(batch)
            if left == 0:
                return


async def lag(arguments: argparse.Namespace, aws: AwsOptions, out: TextIO) -> None:
    """Write a line per shard: how old the first record is that the consumer has not checkpointed.

    Raises:
        CheckpointError: there is no checkpoint of that name.
    """
    store = SqliteCheckpointStore(arguments.checkpoints)
    backend = KinesisBackend(AwsSession(aws))
    try:
        while True:
            positions = await store.load(arguments.name)
            if positions is None:
                raise CheckpointError(name=arguments.name, reason=f"is not in {arguments.checkpoints}")
            chosen = arguments.streams or list(positions.streams)
            for shard in await measure_lag(backend, positions, time.time()):
                if shard.stream_name in chosen:
                    out.write(_lag_line(shard) + "\n")
            out.flush()
            if arguments.watch is None:
                return
            await asyncio.sleep(arguments.watch)
    finally:
        await backend.aclose()


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


def _lag_line(shard: ShardLag) -> str:
    return f"{shard.stream_name}/{shard.shard_id} {shard.seconds:.1f} s behind, at {shard.position}"
