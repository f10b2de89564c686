"""The one module by which stages and their stores use the rest of the plugin, apart from its errors.

Stages ask four questions about the options, offsets and progress of the Kinesis data source. The other names belong to
modules that reading and writing use as well.
"""

import asyncio
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.aws import AwsSession, JsonClient
from penstock.efo_consumer import ShardPosition, StreamIdentity
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._interpreters import check_session
from penstock.spark_plugin._objects import Listed, Objects, S3Objects
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.values import PositionOption, PositionOptionType, epoch_micros
from penstock.spark_plugin._places import FILE_SCHEMES, S3_SCHEMES, Place
from penstock.spark_plugin._settings import missing_settings
from penstock.spark_plugin._spark import tell_lines
from penstock.spark_plugin._telemetry import TRACEPARENT_PROPERTY, current_traceparent, tracer
from penstock.spark_plugin.errors import OffsetError, OptionError

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

__all__ = [
    "FILE_SCHEMES",
    "S3_SCHEMES",
    "TRACEPARENT_PROPERTY",
    "Listed",
    "Objects",
    "Place",
    "S3Objects",
    "StreamConsumer",
    "arriving_bytes_per_second",
    "bounded_read",
    "check_session",
    "current_traceparent",
    "missing_settings",
    "other_streams",
    "stream_consumers",
    "tell_lines",
    "tracer",
]


class StreamConsumer(NamedTuple):
    """A registered consumer of a stream, which Kinesis serves to one reader."""

    place: str
    stream: str
    name: str


def stream_consumers(options: Mapping[str, str]) -> Iterator[StreamConsumer]:
    """The named consumers that a query with these options uses; none if the options are wrong."""
    try:
        parsed = KinesisOptions.parse(dict(options))
    except OptionError:
        return  # reported when the query starts
    if parsed.record_publisher != "efo":
        return
    place = f"{parsed.endpoint_url} {parsed.region} {parsed.role_arn}"
    for stream in parsed.stream_name or (parsed.stream_name_pattern or "",):
        # Without a name each read of a query has its own consumer, named by the checkpoint.
        if name := parsed.efo_consumer_arn.get(stream) or parsed.efo_consumer_name:
            yield StreamConsumer(place, parsed.arn_of(stream) or stream, name)


def other_streams(offset: str, options: Mapping[str, str]) -> str:
    """Why a logged offset cannot belong to a query with these options, as text; empty if it can."""
    from penstock.spark_plugin._reading.stream.offsets import parse_offset

    try:
        read = sorted(parse_offset(json.loads(offset)).positions.streams)
    except (OffsetError, ValueError):
        return "it has not read Kinesis"
    try:
        wanted = KinesisOptions.parse(dict(options)).stream_name
    except OptionError:
        return ""  # reported when the query starts
    if not read or not wanted or set(read) & set(wanted):
        return ""
    return f"it has read the streams {', '.join(read)}, and this one reads {', '.join(wanted)}"


def arriving_bytes_per_second(recent: "Iterable[StreamingQueryProgress | Mapping[str, Any]]") -> float:
    """The rate at which records arrive at the Kinesis sources of a query, from its progress since they caught up.

    Before that, records are read faster than they arrive. 0 while the rate is not known, and for other sources.
    """
    from penstock.spark_plugin._reading.progress_listener import kinesis_progress

    found: dict[int, list[tuple[float, int]]] = {}
    for one in (source for progress in recent for source in kinesis_progress(progress)):
        if one.source in found or 0 < one.numbers.shards == one.numbers.shards_caught_up:
            at = datetime.fromisoformat(one.timestamp).timestamp()
            found.setdefault(one.source, []).append((at, one.numbers.bytes))
    rates = []
    for points in found.values():
        (began, before), (ended, after) = points[0], points[-1]
        rates.append(max(0, after - before) / (ended - began) if ended > began else 0.0)
    return math.fsum(rates)


def bounded_read(options: Mapping[str, str]) -> tuple[str, ...] | None:
    """The facts that decide which records a bounded read gives; None if they depend on when it is planned.

    A time, sequence numbers and a seam are facts. So is TRIM_HORIZON as a start: the stream is identified by its ARN
    and its creation time, and records that expire later stay in a committed result. "Now", LATEST, a time in the
    future, and the end of a shard as the end of a read are not facts.

    Args:
        options: Options of `format("kinesis")`. A missing seam is created.

    Raises:
        OptionError: an option is not valid for the data source.
        penstock.aws.AwsError: the service cannot be asked for its time, or the stream cannot be described.
    """
    from penstock.spark_plugin._reading.bounded.bounds import Bounds

    parsed = KinesisOptions.parse(dict(options))
    if parsed.stream_name_pattern is not None:
        return None  # which streams match depends on when it is asked
    if not _is_beginning(parsed.initial_position):
        return None
    session = AwsSession(aws_options(parsed))
    if not _is_end(session, parsed):
        return None
    # The bounds do not depend on the present time.
    bounds = Bounds.resolve(session, parsed, 0)
    parts = [
        f"endpoint={parsed.endpoint_url}",
        f"after={_positions(bounds.after)}",
        f"after shards={_shards(bounds.after_shards)}",
        f"before={bounds.before_micros}",
        f"upto shards={_shards(bounds.upto_shards)}",
        f"of shards={sorted(parsed.shard_ids)}",
        f"deaggregate={parsed.deaggregate}",
    ]
    return *parts, *asyncio.run(_streams(session, parsed))


def asked_of_kinesis(options: Mapping[str, str]) -> tuple[str, ...]:
    """What the options of a bounded read ask for, without a call to Kinesis."""
    parsed = KinesisOptions.parse(dict(options))
    asked = (parsed.stream_name, parsed.stream_name_pattern, parsed.initial_position, parsed.ending_position)
    return tuple(repr(one) for one in (*asked, sorted(parsed.shard_ids), parsed.endpoint_url, parsed.deaggregate))


async def _streams(session: AwsSession, options: KinesisOptions) -> list[str]:
    """ARN and time of creation of each."""
    from penstock.spark_plugin._reading.stream_names import call_about

    parts = []
    async with JsonClient(session) as client:
        for stream in options.stream_name:
            identity = StreamIdentity(stream, options.arn_of(stream))
            answer = await call_about(
                client, "DescribeStreamSummary", identity.request, identity, options.retry_patience
            )
            found = answer["StreamDescriptionSummary"]
            parts.append(f"{found['StreamARN']} of {found['StreamCreationTimestamp']}")
    return parts


def _is_beginning(position: PositionOption | None) -> bool:
    if position is None:  # TRIM_HORIZON, of a bounded read
        return True
    if position.type is PositionOptionType.AT_TIMESTAMP:
        return position.timestamp is not None
    if position.streams is not None:
        return all(_is_beginning(one) for one in position.streams.values())
    return (
        position.type is not PositionOptionType.LATEST
        and PositionOptionType.LATEST not in (position.shards or {}).values()
    )


def _is_end(session: AwsSession, options: KinesisOptions) -> bool:
    from penstock.spark_plugin._reading.service_time import ask_time, is_seen

    position = options.ending_position
    if position is None:
        return False
    if position.type is PositionOptionType.SEAM:
        return True  # a read waits until it is over
    if position.streams is not None:
        ends = [one for stream in position.streams.values() for one in (stream.shards or {}).values()]
        return all(isinstance(one, ShardPosition) and one.sequence_number is not None for one in ends)
    if position.type is PositionOptionType.TRIM_HORIZON:
        return True  # nothing
    if position.timestamp is None:
        return False
    first = options.stream_name[0]
    asyncio.run(ask_time(session, StreamIdentity(first, options.arn_of(first)), options.retry_patience))
    return is_seen(session.service_clock(), -(-epoch_micros(position.timestamp) // 1000))


def _shards(streams: Mapping[str, Mapping[str, ShardPosition]]) -> str:
    return json.dumps({stream: _positions(shards) for stream, shards in streams.items()}, sort_keys=True)


def _positions(shards: Mapping[str, ShardPosition]) -> str:
    return json.dumps({shard: one.to_json() for shard, one in shards.items()}, sort_keys=True)
