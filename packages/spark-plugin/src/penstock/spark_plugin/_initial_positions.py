"""Where a new query begins."""

from collections.abc import Mapping

from penstock.aws import AwsSession
from penstock.efo_consumer import (
    ShardPosition,
    StartingPosition,
    StartingPositionType,
    StreamPositions,
    resolve_initial_positions,
)
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._option_values import InitialPosition, InitialPositionType
from penstock.spark_plugin._options import KinesisOptions
from penstock.spark_plugin._seam import seam_millis

LATEST = StartingPosition(StartingPositionType.LATEST)


def initial_positions(options: KinesisOptions) -> StreamPositions:
    """The positions of a new streaming query. Asks Kinesis for its shards, and for LATEST its time.

    Raises:
        penstock.efo_consumer.InitialPositionError: A stream's shards cannot be listed.
        OffsetError: The file of a seam is none.
    """
    session = AwsSession(aws_options(options))
    position = options.initial_position
    if position is not None and position.streams is not None:
        return StreamPositions(
            {name: after_sequence_numbers(session, name, shards) for name, shards in named(position, options).items()}
        )
    return resolve_initial_positions(session, options.stream_name, _starting_position(session, options))


def seam_of(session: AwsSession, options: KinesisOptions, position: InitialPosition) -> int:
    """The time of a seam, in milliseconds; made now, by the service's clock, if there is none."""
    if position.seam is None:
        raise ValueError(f"{position} is no seam")
    return seam_millis(position.seam, lambda: resolve_initial_positions(session, options.stream_name, LATEST))


def named(position: InitialPosition, options: KinesisOptions) -> Mapping[str, Mapping[str, ShardPosition]]:
    """Positions in shards by the stream's name, also where the user left out the only one's."""
    return {name or options.stream_name[0]: shards for name, shards in (position.streams or {}).items()}


def after_sequence_numbers(
    session: AwsSession, stream: str, shards: Mapping[str, ShardPosition]
) -> Mapping[str, ShardPosition]:
    """The named shards, and those that none of them descends from or leads to, from their beginning."""
    client = session.client("kinesis")
    parents: dict[str, set[str]] = {}
    request: dict[str, str] = {"StreamName": stream}
    while True:
        answer = client.list_shards(**request)
        for shard in answer["Shards"]:
            keys = ("ParentShardId", "AdjacentParentShardId")
            parents[shard["ShardId"]] = {shard[key] for key in keys if shard.get(key)}
        if not answer.get("NextToken"):
            break
        request = {"NextToken": answer["NextToken"]}
    past = _closure(shards, parents)
    children: dict[str, set[str]] = {}
    for shard_id, of in parents.items():
        for parent in of:
            children.setdefault(parent, set()).add(shard_id)
    known = past | _closure(shards, children)
    others = {one for one in parents if one not in known and not parents[one] & parents.keys()}
    return {**dict.fromkeys(sorted(others), ShardPosition.trim_horizon()), **shards}


def ancestors(shards: Mapping[str, ShardPosition], parents: Mapping[str, set[str]]) -> set[str]:
    """The shards that were read to their end before any of these began."""
    return _closure(shards, parents) - shards.keys()


def _closure(first: Mapping[str, ShardPosition], steps: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = list(first)
    while pending:
        one = pending.pop()
        if one not in found:
            found.add(one)
            pending += steps.get(one, ())
    return found


def _starting_position(session: AwsSession, options: KinesisOptions) -> StartingPosition:
    position = options.initial_position
    if position is None:
        return LATEST
    if position.type is InitialPositionType.SEAM:
        return StartingPosition(StartingPositionType.AT_TIMESTAMP, seam_of(session, options, position))
    millis = int(position.timestamp.timestamp() * 1000) if position.timestamp is not None else None
    return StartingPosition(StartingPositionType(position.type.value), millis)
