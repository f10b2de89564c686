"""How far consumers are behind, as people look at it: a line per shard and consumer."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from penstock.aws import AwsOptions, AwsSession
from penstock.efo_consumer import (
    CheckpointError,
    DynamoDbCheckpointStore,
    KinesisBackend,
    S3CheckpointStore,
    ShardLag,
    SparkCheckpoint,
    SqliteCheckpointStore,
    StreamPositions,
    measure_lag,
)
from penstock.terminal import Cell, Column, Row, Screen, Table, add_json_argument, age, positive_seconds, watch

_COLUMNS: Final = (
    Column("CONSUMER"),
    Column("STREAM"),
    Column("SHARD"),
    Column("BEHIND", justify="right"),
    Column("CONDITION"),
    Column("POSITION"),
)
_ALERT_SECONDS: Final = (10.0, 300.0)
"""From here yellow, and red."""


def add_lag_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `lag` understands beside the flags of AWS."""
    parser.add_argument(
        "streams", nargs="*", metavar="STREAM", help="name of a stream; all of the checkpoints when left out"
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--checkpoints",
        metavar="FILE",
        help="where consumers keep them: a file, or s3://BUCKET/FOLDER, with --name; default: in the state directory",
    )
    place.add_argument("--checkpoints-table", metavar="TABLE", help="or a table of DynamoDB, with --name")
    place.add_argument(
        "--checkpoint-location",
        metavar="LOCATION",
        help="or of a Spark query: the folder, or s3://BUCKET/PREFIX, of its checkpoint; read without Spark",
    )
    parser.add_argument("--name", help="of the consumer; all that keep checkpoints when left out")
    add_json_argument(parser)
    parser.add_argument("--watch", type=positive_seconds, metavar="SECONDS", help="measure again, until interrupted")


async def lag(arguments: argparse.Namespace, aws: AwsOptions, out: TextIO) -> None:
    """Write a line per shard: how old the first record is that the consumer has not checkpointed.

    Raises:
        CheckpointError: no checkpoint has that name, or it has none of the streams.
    """
    session = AwsSession(aws)
    backend = KinesisBackend(session)

    async def measure() -> list[Table]:
        found = []
        for name, positions in await _checkpoints(arguments, session):
            found += [(name, shard) for shard in await measure_lag(backend, positions)]
        return [lag_table(found)]

    try:
        await watch(Screen(out, as_json=arguments.json), measure, arguments.watch)
    finally:
        await backend.aclose()


def lag_table(found: Sequence[tuple[str, ShardLag]]) -> Table:
    """A row per consumer and shard; bars are against the shard that is furthest behind."""
    longest = max((shard.seconds or 0.0 for _, shard in found), default=0.0)
    scale = max(longest, _ALERT_SECONDS[0])
    rows = [
        Row(
            [
                name,
                shard.stream_name,
                shard.shard_id,
                _behind(shard.seconds, scale),
                _condition(shard),
                str(shard.position),
            ],
            _as_json(name, shard),
            _as_text(name, shard),
        )
        for name, shard in found
    ]
    return Table(columns=_COLUMNS, rows=rows, empty="no shards")


def _condition(shard: ShardLag) -> Cell:
    condition = shard.condition
    return Cell(str(condition), style="green" if condition.is_well else "red")


def _behind(seconds: float | None, scale: float) -> Cell:
    if seconds is None:
        return Cell("unknown", style="yellow")
    level = sum(seconds >= limit for limit in _ALERT_SECONDS)
    text = f"{seconds:.1f} s" if seconds < 60 else age(seconds)
    return Cell(text, style=("green", "yellow", "red")[level], share=seconds / scale)


async def _checkpoints(arguments: argparse.Namespace, session: AwsSession) -> list[tuple[str, StreamPositions]]:
    """The positions of each consumer that was asked for, in the streams that were."""
    store: SqliteCheckpointStore | DynamoDbCheckpointStore | S3CheckpointStore
    if arguments.checkpoint_location is not None:
        return await asyncio.to_thread(_of_spark, arguments, session)
    names = [] if arguments.name is None else [arguments.name]
    if arguments.checkpoints_table is not None:
        place, known = f"the table {arguments.checkpoints_table}", names
        store = DynamoDbCheckpointStore(session, arguments.checkpoints_table)
        if not names:
            raise CheckpointError(name="", reason=f"say with --name which one of {place}")
    elif (arguments.checkpoints or "").startswith("s3://"):
        place, known = arguments.checkpoints, names
        if not names:
            raise CheckpointError(name="", reason=f"say with --name which one of {place}")
        store = S3CheckpointStore(session, arguments.checkpoints)
    else:
        is_default = arguments.checkpoints is None
        namespace = session.endpoint_url("kinesis") if is_default else ""
        file = None if is_default else Path(arguments.checkpoints)
        store = SqliteCheckpointStore(file, namespace=namespace)
        known = await store.names()
        place = str(arguments.checkpoints or "the state directory, for this endpoint")
    found: list[tuple[str, StreamPositions]] = []
    missing = set(arguments.streams)
    try:
        loaded = [(name, await store.load(name)) for name in names or known]
    finally:
        await store.close()
    for name, positions in loaded:
        if positions is None:
            hint = f"; there are {', '.join(known)}" if known and name not in known else ""
            raise CheckpointError(name=name, reason=f"is not in {place}{hint}: a consumer writes it at its checkpoints")
        missing -= positions.streams.keys()
        chosen = arguments.streams or positions.streams
        of_chosen = {stream: at for stream, at in positions.streams.items() if stream in chosen}
        found.append((name, StreamPositions(of_chosen, positions.created)))
    if missing or not found:
        which = f" of {', '.join(sorted(missing))}" if missing else ""
        reason = f"none{which} in {place}: a consumer writes it at its checkpoints; see --checkpoints"
        raise CheckpointError(name=arguments.name or "", reason=reason)
    return found


def _of_spark(arguments: argparse.Namespace, session: AwsSession) -> list[tuple[str, StreamPositions]]:
    """What the last micro-batch that is done has read, for each source of the query."""
    location = arguments.checkpoint_location
    sources = SparkCheckpoint(location, session).positions()
    query = arguments.name or location.rstrip("/").rpartition("/")[2]
    found = []
    for number, positions in sources.items():
        chosen = {one: at for one, at in positions.streams.items() if one in (arguments.streams or positions.streams)}
        if chosen:
            found.append(
                (query if len(sources) == 1 else f"{query}:{number}", StreamPositions(chosen, positions.created))
            )
    if missing := {*arguments.streams} - {stream for _, positions in found for stream in positions.streams}:
        raise CheckpointError(name=location, reason=f"has no stream {', '.join(sorted(missing))}")
    return found


def _as_text(name: str, shard: ShardLag) -> str:
    behind = "an unknown time" if shard.seconds is None else f"{shard.seconds:.1f} s"
    condition = "" if shard.condition.is_well else f", {shard.condition}"
    return f"{shard.stream_name}/{shard.shard_id} {behind} behind, {name} at {shard.position}{condition}"


def _as_json(name: str, shard: ShardLag) -> dict[str, object]:
    return {
        "consumer": name,
        "streamName": shard.stream_name,
        "shardId": shard.shard_id,
        "secondsBehind": None if shard.seconds is None else round(shard.seconds, 3),
        "condition": shard.condition.state.value,
        "cause": shard.condition.cause,
        "position": shard.position.to_json(),
    }
