"""Fingerprints of bounded reads of Kinesis: of what is a fact about both of their ends."""

import asyncio
import json
from collections.abc import Mapping

from penstock.aws import AwsSession, JsonClient
from penstock.efo_consumer import ShardPosition, StreamIdentity
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.values import PositionOption, PositionOptionType, epoch_micros
from penstock.spark_plugin._reading.bounded.bounds import Bounds
from penstock.spark_plugin._reading.start.service_time import ask_time, is_seen
from penstock.spark_plugin._reading.start.stream_summary import call_about
from penstock.spark_plugin._stages.fingerprints.code import digest


def kinesis_fingerprint(options: Mapping[str, str]) -> str | None:
    """Of what a bounded read by these options gives, whenever it is planned; None where that depends on when.

    A time, sequence numbers and a seam are facts, and so is TRIM_HORIZON as a beginning: of the stream, which goes by
    its ARN and its time of creation. Records that expire meanwhile stay in a committed result. "Now", LATEST, a time
    that is not over, and the end of a shard as the end of a read are none.

    Args:
        options: Of `format("kinesis")`. A seam that is not there yet is made.

    Raises:
        OptionError: the options are not those of the data source.
        penstock.aws.AwsError: the service cannot be asked for its time, or the stream cannot be described.
    """
    parsed = KinesisOptions.parse(dict(options))
    if parsed.stream_name_pattern is not None:
        return None  # which streams match depends on when it is asked
    if not _is_beginning(parsed.initial_position):
        return None
    session = AwsSession(aws_options(parsed))
    if not _is_end(session, parsed):
        return None
    # Nothing of what is now is left in the bounds.
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
    return digest(*parts, *asyncio.run(_streams(session, parsed)))


async def _streams(session: AwsSession, options: KinesisOptions) -> list[str]:
    """ARN and time of creation of each."""
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
    position = options.ending_position
    time_ = options.ending_timestamp if position is None else position.timestamp
    if position is not None and position.type is PositionOptionType.SEAM:
        return True  # a read waits until it is over
    if position is not None and position.streams is not None:
        ends = [one for stream in position.streams.values() for one in (stream.shards or {}).values()]
        return all(isinstance(one, ShardPosition) and one.sequence_number is not None for one in ends)
    if position is not None and position.type is PositionOptionType.TRIM_HORIZON:
        return True  # nothing
    if time_ is None:
        return False
    first = options.stream_name[0]
    asyncio.run(ask_time(session, StreamIdentity(first, options.arn_of(first)), options.retry_patience))
    return is_seen(session.service_clock(), -(-epoch_micros(time_) // 1000))


def _shards(streams: Mapping[str, Mapping[str, ShardPosition]]) -> str:
    return json.dumps({stream: _positions(shards) for stream, shards in streams.items()}, sort_keys=True)


def _positions(shards: Mapping[str, ShardPosition]) -> str:
    return json.dumps({shard: one.to_json() for shard, one in shards.items()}, sort_keys=True)
