"""How far consumers are behind, as people look at it: a line per shard and consumer."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import TextIO

from penstock.aws import AwsOptions, AwsSession
from penstock.efo_consumer import (
    CheckpointError,
    DynamoDbCheckpointStore,
    KinesisBackend,
    ShardLag,
    SqliteCheckpointStore,
    StreamPositions,
    measure_lag,
)


def add_lag_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `lag` understands beside the flags of AWS."""
    parser.add_argument(
        "streams", nargs="*", metavar="STREAM", help="name of a stream; all of the checkpoints when left out"
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--checkpoints", type=Path, metavar="FILE", help="where consumers keep them; default: in the state directory"
    )
    place.add_argument("--checkpoints-table", metavar="TABLE", help="or a table of DynamoDB, with --name")
    parser.add_argument("--name", help="of the consumer; all that keep checkpoints when left out")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--watch", type=_seconds, metavar="SECONDS", help="measure again, until interrupted")


async def lag(arguments: argparse.Namespace, aws: AwsOptions, out: TextIO) -> None:
    """Write a line per shard: how old the first record is that the consumer has not checkpointed.

    Raises:
        CheckpointError: there is no checkpoint of that name, or none of the streams.
    """
    session = AwsSession(aws)
    backend = KinesisBackend(session)
    try:
        while True:
            for name, positions in await _checkpoints(arguments, session):
                for shard in await measure_lag(backend, positions, time.time()):
                    out.write((json.dumps(_as_json(name, shard)) if arguments.json else _as_text(name, shard)) + "\n")
            out.flush()
            if arguments.watch is None:
                return
            await asyncio.sleep(arguments.watch)
    finally:
        await backend.aclose()


async def _checkpoints(arguments: argparse.Namespace, session: AwsSession) -> list[tuple[str, StreamPositions]]:
    """The positions of each consumer that was asked for, in the streams that were."""
    store: SqliteCheckpointStore | DynamoDbCheckpointStore
    names = [] if arguments.name is None else [arguments.name]
    if arguments.checkpoints_table is not None:
        place, known = f"the table {arguments.checkpoints_table}", names
        store = DynamoDbCheckpointStore(session, arguments.checkpoints_table)
        if not names:
            raise CheckpointError(name="", reason=f"say with --name which one of {place}")
    else:
        is_default = arguments.checkpoints is None
        namespace = session.endpoint_url("kinesis") if is_default else ""
        store = SqliteCheckpointStore(arguments.checkpoints, namespace=namespace)
        known = await store.names()
        place = str(arguments.checkpoints or "the state directory, for this endpoint")
    found: list[tuple[str, StreamPositions]] = []
    missing = set(arguments.streams)
    for name in names or known:
        positions = await store.load(name)
        if positions is None:
            hint = f"; there are {', '.join(known)}" if known and name not in known else ""
            raise CheckpointError(name=name, reason=f"is not in {place}{hint}: a consumer writes it at its checkpoints")
        missing -= positions.streams.keys()
        chosen = arguments.streams or positions.streams
        found.append((name, StreamPositions({s: at for s, at in positions.streams.items() if s in chosen})))
    if missing or not found:
        which = f" of {', '.join(sorted(missing))}" if missing else ""
        reason = f"none{which} in {place}: a consumer writes it at its checkpoints; see --checkpoints"
        raise CheckpointError(name=arguments.name or "", reason=reason)
    return found


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a time above 0")
    return seconds


def _as_text(name: str, shard: ShardLag) -> str:
    return f"{shard.stream_name}/{shard.shard_id} {shard.seconds:.1f} s behind, {name} at {shard.position}"


def _as_json(name: str, shard: ShardLag) -> dict[str, object]:
    return {
        "consumer": name,
        "streamName": shard.stream_name,
        "shardId": shard.shard_id,
        "secondsBehind": round(shard.seconds, 3),
        "position": shard.position.to_json(),
    }
