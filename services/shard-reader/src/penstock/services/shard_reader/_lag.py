"""How far consumers are behind, as people look at it: a line per shard and consumer."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from penstock.aws import AwsConnectionError, AwsError, AwsOptions, AwsSession, JsonClient
from penstock.efo_consumer import (
    CheckpointError,
    DynamoDbCheckpointStore,
    EfoConsumerError,
    KinesisBackend,
    RemoteShardReader,
    S3CheckpointStore,
    SessionInfo,
    ShardLag,
    ShardStats,
    SparkCheckpoint,
    SqliteCheckpointStore,
    StreamPositions,
    measure_lag,
)
from penstock.registration import AnnouncedReader, ReaderFiles
from penstock.rpc import ClientSecurity, PenstockRpcError
from penstock.terminal import Cell, Column, Row, Screen, Table, add_json_argument, age, positive_seconds, size, watch

_COLUMNS: Final = (
    Column("CONSUMER"),
    Column("STREAM"),
    Column("SHARD"),
    Column("BEHIND", justify="right"),
    Column("CONDITION"),
    Column("POSITION"),
)
_READERS: Final = (
    Column("QUERY"),
    Column("STREAM"),
    Column("SHARD"),
    Column("READER BEHIND STREAM", justify="right"),
    Column("NOT TAKEN BY QUERY", justify="right"),
    Column("LAST ASKED", justify="right"),
    Column("CONDITION"),
)
_ASK_SECONDS: Final = 3.0
_ALERT_SECONDS: Final = (10.0, 300.0)
"""From here yellow, and red."""


def add_lag_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `lag` understands beside the flags of AWS."""
    parser.add_argument(
        "streams", nargs="*", metavar="STREAM", help="name of a stream; default: all streams in the checkpoints"
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--checkpoints",
        metavar="FILE",
        help="checkpoints of consumers: a file, or s3://BUCKET/FOLDER with --name; default: the state directory",
    )
    place.add_argument(
        "--checkpoints-table", metavar="TABLE", help="checkpoints of consumers in a table of DynamoDB, with --name"
    )
    place.add_argument(
        "--checkpoint-location",
        metavar="LOCATION",
        help="checkpoint of a Spark query: a folder, or s3://BUCKET/PREFIX; Spark is not needed",
    )
    parser.add_argument("--name", help="name of the consumer; default: all consumers")
    add_json_argument(parser)
    parser.add_argument(
        "--watch", type=positive_seconds, metavar="SECONDS", help="measure again at this interval, until interrupted"
    )


async def lag(arguments: argparse.Namespace, aws: AwsOptions, out: TextIO) -> None:
    """Write a line per shard: how old the first record is that the consumer has not checkpointed.

    Unless checkpoints are named, a second table has the readers of running queries of this user on this machine: how
    far each is behind its stream, what its query has not taken yet, and when the query last asked.

    Raises:
        CheckpointError: no checkpoint has that name, or it has none of the streams.
    """
    session = AwsSession(aws)
    backend = KinesisBackend(session)

    async def measure() -> list[Table]:
        found = []
        names = (arguments.name, arguments.checkpoints, arguments.checkpoints_table, arguments.checkpoint_location)
        readers = reader_table([] if any(names) else await running_readers(arguments.streams))
        try:
            checkpoints = await _checkpoints(arguments, session)
        except CheckpointError:
            if not readers.rows:
                raise
            return [readers]
        for name, positions in checkpoints:
            found += [(name, shard) for shard in await measure_lag(backend, positions)]
        return [lag_table(found), *([readers] if readers.rows else [])]

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


@dataclass(frozen=True)
class RunningReader:
    """A reader of a query on this machine, and what it reports.

    Attributes:
        query: the name of the query.
        sessions: with their shards.
        reason: why it reports none; empty where it does.
    """

    query: str
    sessions: Sequence[SessionInfo] = ()
    reason: str = ""


async def running_readers(streams: Sequence[str]) -> list[RunningReader]:
    """Ask the readers that run inside queries of this user on this machine; of these streams, or of all."""
    directory = ReaderFiles()
    try:
        announced = await directory.readers()
    finally:
        await directory.close()
    wanted = [one for one in announced if one.is_asked and (not streams or {*streams} & {*one.stream_names})]
    return await asyncio.gather(*map(_ask, wanted))


async def _ask(reader: AnnouncedReader) -> RunningReader:
    name = reader.query or reader.job_id
    # As its tasks call it: a query has no certificate, and the token allows looking only.
    security = ClientSecurity(token=reader.view_token, allow_plain_text_token=True)
    client = RemoteShardReader(reader.address, security)
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            return RunningReader(name, await client.sessions(with_shards=True))
    except (EfoConsumerError, PenstockRpcError, TimeoutError) as error:
        return RunningReader(name, reason=str(error) or f"no answer in {_ASK_SECONDS:g} s")
    finally:
        await client.aclose()


def reader_table(readers: Sequence[RunningReader]) -> Table:
    """A row per query and shard: how far its reader is behind the stream, and the query behind its reader."""
    rows = []
    for reader in readers:
        if reader.reason:
            cells: list[Cell | str] = [reader.query, "-", "-", "-", "-", "-", Cell(reader.reason, style="red")]
            rows.append(Row(cells, {"query": reader.query, "problem": reader.reason}))
        for session in reader.sessions:
            rows += [_reader_row(reader.query, session, shard) for shard in session.shards]
    return Table(columns=_READERS, rows=rows, title="readers of running queries")


def _reader_row(query: str, session: SessionInfo, shard: ShardStats) -> Row:
    seconds = None if shard.millis_behind_latest < 0 else shard.millis_behind_latest / 1000
    condition = shard.condition
    waiting = f"{shard.buffered_records} records, {size(shard.buffered_bytes)}" if shard.buffered_bytes else "nothing"
    behind = "unknown" if seconds is None else f"{seconds:.1f} s" if seconds < 60 else age(seconds)
    document = {
        "query": query,
        "streamName": shard.stream_name,
        "shardId": shard.shard_id,
        "secondsBehindStream": seconds,
        "recordsNotTaken": shard.buffered_records,
        "bytesNotTaken": shard.buffered_bytes,
        "secondsSinceAsked": round(session.idle_seconds, 3),
        "condition": condition.state.value,
        "cause": condition.cause,
    }
    asked = f"{age(session.idle_seconds)} ago"
    state = Cell(str(condition), style="green" if condition.is_well else "red")
    line = (
        f"{shard.stream_name}/{shard.shard_id} reader of {query} {behind} behind the stream, not taken: {waiting}, "
        f"asked {asked}, {condition}"
    )
    return Row([query, shard.stream_name, shard.shard_id, behind, waiting, asked, state], document, line)


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
        place = str(arguments.checkpoints or "the state directory for this endpoint")
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
        if not (arguments.checkpoints or arguments.checkpoints_table):
            await _check_answers(session)
        reason = (
            f"no checkpoint{which} in {place}. A consumer writes its checkpoint when it commits. --checkpoint-location "
            "LOCATION reads the checkpoint of a Spark query; --checkpoints and --checkpoints-table read other places"
        )
        raise CheckpointError(name=arguments.name or "", reason=reason)
    return found


async def _check_answers(session: AwsSession) -> None:
    """Report an endpoint that does not answer: nothing could have been read there.

    Raises:
        AwsConnectionError: there was no answer.
    """
    async with JsonClient(session) as client:
        try:
            await client.call("ListStreams", {"Limit": 1})
        except AwsConnectionError:
            raise
        except AwsError:
            # It answers, or there are no credentials: neither explains missing checkpoints.
            pass


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
