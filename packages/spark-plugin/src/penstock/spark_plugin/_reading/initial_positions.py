"""Where a new query begins, and the seam between a bounded read and the stream that continues it."""

import asyncio
import json
import logging
import os
import secrets
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from penstock.aws import AwsServiceError, AwsSession, JsonClient
from penstock.efo_consumer import (
    InitialPosition,
    InitialPositionError,
    InitialPositionType,
    Shard,
    ShardFilter,
    ShardPosition,
    StreamIdentity,
    StreamPositions,
    latest_arrival_millis,
    list_shards,
    resolve_initial_positions,
    resolve_named_shards,
    stream_client,
    with_ancestors,
)
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._objects import S3Objects
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.values import PositionOption, PositionOptionType, first_millis
from penstock.spark_plugin._places import Place
from penstock.spark_plugin._reading.service_time import ask_time, wait_until_seen
from penstock.spark_plugin._reading.stream_names import StreamKeys, call_about, describe_stream
from penstock.spark_plugin.errors import OffsetError


def seam_millis(path: Path, now: Callable[[], StreamPositions]) -> int:
    """The time of a seam, in milliseconds since 1970. The first caller creates it, for all later ones.

    Args:
        path: The file.
        now: Gives positions at this moment, by the service's clock; it is called if the file does not exist.

    Raises:
        OffsetError: the file does not hold a seam.
    """
    if not path.exists():
        millis = _latest(now())
        path.parent.mkdir(parents=True, exist_ok=True)
        # Drivers in containers have the same few process ids, and may share the folder.
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        temporary.write_text(json.dumps({"version": 1, "arrivalMillis": millis}))
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass  # another was first
        finally:
            temporary.unlink()
    return _parse(path, path.read_text())


def seam_millis_on_s3(url: str, session: AwsSession, now: Callable[[], StreamPositions]) -> int:
    """Like `seam_millis`, with an object that is written only if it does not exist.

    It is reached with the credentials and the region of the session, at S3's own endpoint.

    Raises:
        OffsetError: the object does not hold a seam.
        penstock.aws.AwsError: the bucket does not exist, or cannot be used.
    """
    folder, _, key = url.rpartition("/")
    of_s3 = AwsSession(replace(session.options, endpoint_url=None, ca_bundle=None))
    objects = S3Objects(Place.parse(folder), session=of_s3)
    try:
        found = objects.read(key)
        if found is None:
            document = {"version": 1, "arrivalMillis": _latest(now()), "nonce": secrets.token_hex(8)}
            objects.write(key, json.dumps(document).encode(), if_version=None)
            found = objects.read(key)
            if found is None:
                raise OffsetError(f"{url} was removed as soon as it was made")
        return _parse(url, found.data)
    finally:
        objects.close()


def _latest(positions: StreamPositions) -> int:
    return min(position.timestamp_millis or 0 for shards in positions.streams.values() for position in shards.values())


def _parse(name: object, text: str | bytes) -> int:
    try:
        document = json.loads(text)
        if document["version"] == 1:
            return int(document["arrivalMillis"])
    except (ValueError, KeyError, TypeError) as error:
        raise OffsetError(f"{name} is not a seam") from error
    raise OffsetError(f"{name} is a seam of version {document['version']}, which is not understood")


LATEST = InitialPosition(InitialPositionType.LATEST)

_log = logging.getLogger(__name__)
_LATE_LIST_SECONDS = 60.0
"""How long after a reshard ListShards may show the shards of before; reports speak of seconds."""
_LIST_AGAIN_SECONDS = 2.0


def initial_positions(options: KinesisOptions) -> StreamPositions:
    """The positions of a new streaming query. Asks Kinesis for its shards, and for LATEST its time.

    Raises:
        penstock.efo_consumer.InitialPositionError: a stream's shards cannot be listed.
        OffsetError: the seam's file does not hold a seam.
    """
    session = AwsSession(aws_options(options))
    position = options.initial_position
    if position is not None and position.streams is not None:
        return _of_each_stream(session, options, named(position, options))
    return _resolved(session, options, _starting_position(session, options, position))


def _of_each_stream(
    session: AwsSession, options: KinesisOptions, positions: Mapping[str, PositionOption]
) -> StreamPositions:
    keys = {name: options.arn_of(name) or name for name, one in positions.items() if one.shards is not None}
    streams: dict[str, Mapping[str, ShardPosition]] = {}
    for name, shards in in_shards(positions, lambda: latest_millis(session, options)).items():
        streams[name] = after_sequence_numbers(session, keys[name], shards, options.retry_patience)
    created = asyncio.run(_created(session, keys, options.retry_patience))
    for name in positions.keys() - keys.keys():
        alone = options.alone(name)
        begun = _resolved(session, alone, _starting_position(session, alone, positions[name]))
        streams |= begun.streams
        created |= begun.created
    return StreamPositions(streams, created)


def in_shards(
    positions: Mapping[str, PositionOption], latest_millis: Callable[[], int]
) -> dict[str, dict[str, ShardPosition]]:
    """The positions of those streams whose shards are named; LATEST is one time, asked for where it is named."""
    found = {name: one.shards for name, one in positions.items() if one.shards is not None}
    latest = ShardPosition.trim_horizon()
    if any(one is PositionOptionType.LATEST for shards in found.values() for one in shards.values()):
        latest = ShardPosition.at_timestamp(latest_millis())
    return {
        name: {shard: one if isinstance(one, ShardPosition) else latest for shard, one in shards.items()}
        for name, shards in found.items()
    }


def _resolved(session: AwsSession, options: KinesisOptions, start: InitialPosition) -> StreamPositions:
    streams = [options.arn_of(name) or name for name in options.stream_name]
    patience = timedelta(seconds=options.retry_patience)
    return StreamKeys(options).named(resolve_initial_positions(session, streams, start, retry_patience=patience))


async def _created(session: AwsSession, keys: Mapping[str, str], retry_patience: float) -> dict[str, int]:
    """When the streams were created, by name, if the permission is there."""
    purpose = "cannot check whether stream {} is deleted and created again while it is read"
    async with stream_client(session) as client:
        found = {
            name: await describe_stream(client, key, purpose.format(name), retry_patience) for name, key in keys.items()
        }
    return {name: summary.created_millis for name, summary in found.items() if summary is not None}


def latest_millis(session: AwsSession, options: KinesisOptions) -> int:
    """The time of LATEST by the service's clock, in milliseconds since 1970."""
    # Whether there are streams; the answers have the service's time.
    _resolved(session, options, InitialPosition(InitialPositionType.TRIM_HORIZON))
    return latest_arrival_millis(session.service_clock())


def seam_of(session: AwsSession, options: KinesisOptions, position: PositionOption) -> int:
    """The time of a seam, in milliseconds; created now, by the service's clock, if it does not exist.

    This waits for a time that is to come: until it is over, shards may begin that have records before it.

    Raises:
        OffsetError: the file does not hold a seam.
        penstock.aws.AwsServiceError: the service cannot be asked for its time.
    """
    if position.seam is None:
        raise ValueError(f"{position} is not a seam")

    def now() -> StreamPositions:
        return _resolved(session, options, LATEST)

    if isinstance(position.seam, str):
        millis = seam_millis_on_s3(position.seam, session, now)
    else:
        millis = seam_millis(position.seam, now)
    asyncio.run(_wait_for_seam(session, options, millis))
    return millis


async def _wait_for_seam(session: AwsSession, options: KinesisOptions, millis: int) -> None:
    first = options.stream_name[0]
    await ask_time(session, StreamIdentity(first, options.arn_of(first)), options.retry_patience)
    await wait_until_seen(session.service_clock(), millis, None)


def named(position: PositionOption | None, options: KinesisOptions) -> Mapping[str, PositionOption]:
    """Positions by the stream's name, also where the user left out the only one's; none where one is for all."""
    streams = position.streams if position is not None else None
    return {name or options.stream_name[0]: one for name, one in (streams or {}).items()}


def after_sequence_numbers(
    session: AwsSession, stream: str, shards: Mapping[str, ShardPosition], retry_patience: float
) -> Mapping[str, ShardPosition]:
    """The named shards, and those that none of them descends from or leads to, from their beginning.

    `stream` is a name or an ARN. A named shard that had ended by the time at which it is to begin is left to the shards
    that it had become by then.
    """

    async def list_all() -> list[Shard]:
        async with stream_client(session) as client:
            return await list_with(client, StreamIdentity.of(stream), shards, retry_patience)

    listed = asyncio.run(list_all())
    past = with_ancestors(shards, listed)
    unread = {one.shard_id for one in listed} - past
    # Others follow their parents; but shards after a named shard are not read, and have no successors here.
    others = {
        one.shard_id
        for one in listed
        if one.shard_id in unread and not (shards.keys() | unread) & set(one.parent_shard_ids)
    }
    positions = {**dict.fromkeys(sorted(others), ShardPosition.trim_horizon()), **shards}
    return resolve_named_shards(session, stream, positions, retry_patience=timedelta(seconds=retry_patience))


async def list_with(
    client: JsonClient,
    stream: StreamIdentity,
    named: Collection[str],
    retry_patience: float,
    shard_filter: ShardFilter | None = None,
) -> list[Shard]:
    """All shards of the stream, once the named ones are among them that are there: a list may show them late.

    Raises:
        penstock.efo_consumer.InitialPositionError: a shard does not appear in the list.
    """
    patience, waited = timedelta(seconds=retry_patience), 0.0
    while True:
        listed = await list_shards(client, stream, filter=shard_filter, retry_patience=patience)
        # A shard that left the list precedes its children; without them its descendants are unknown.
        known = {name for one in listed for name in (one.shard_id, *one.parent_shard_ids)}
        unknown = sorted(set(named) - known)
        late = [one for one in unknown if await _is_there(client, stream, one, retry_patience)]
        if not late:
            return listed
        if waited >= _LATE_LIST_SECONDS:
            reason = f"{late[0]} can be read, but ListShards has not shown it for {waited:g} s: start again later"
            raise InitialPositionError(stream=stream.name, code="", reason=reason)
        _log.warning("%s: %s is not listed yet: asking again", stream.name, ", ".join(late))
        waited += _LIST_AGAIN_SECONDS
        await asyncio.sleep(_LIST_AGAIN_SECONDS)


async def _is_there(client: JsonClient, stream: StreamIdentity, shard_id: str, retry_patience: float) -> bool:
    request = {**stream.request, "ShardId": shard_id, "ShardIteratorType": "TRIM_HORIZON"}
    try:
        await call_about(client, "GetShardIterator", request, stream, retry_patience)
    except AwsServiceError as error:
        if error.code != "ResourceNotFoundException":
            raise
        return False
    return True


def _starting_position(
    session: AwsSession, options: KinesisOptions, position: PositionOption | None
) -> InitialPosition:
    if position is None:
        return LATEST
    if position.type is PositionOptionType.SEAM:
        return InitialPosition(InitialPositionType.AT_TIMESTAMP, seam_of(session, options, position))
    millis = first_millis(position.timestamp) if position.timestamp is not None else None
    return InitialPosition(InitialPositionType(position.type.value), millis)
