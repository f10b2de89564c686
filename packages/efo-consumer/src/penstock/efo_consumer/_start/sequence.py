"""Turns sequence numbers of records into positions, once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from penstock.aws import AwsError
from penstock.efo_consumer._model.positions import ShardPosition, StreamPositions
from penstock.efo_consumer._model.shards import StreamIdentity
from penstock.efo_consumer._start.initial import call_with_retries
from penstock.efo_consumer.errors import InitialPositionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.aws import AwsSession


def resolve_sequence_numbers(
    aws_session: AwsSession,
    sequence_numbers: Mapping[str, Mapping[str, str]],
    *,
    inclusive: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> StreamPositions:
    """Give the positions AFTER, or (`inclusive`) AT the records with these sequence numbers. Blocks on Kinesis for AT.

    A position lies behind a record or a time. So AT becomes the position after the record before; and where no record
    before has its arrival time, that time.

    Args:
        sequence_numbers: by stream and shard.

    Raises:
        InitialPositionError: the stream does not hold the record (any more).
        PositionsError: not a sequence number.
    """
    after = {
        stream: {shard: ShardPosition.after(number) for shard, number in shards.items()}
        for stream, shards in sequence_numbers.items()
    }
    if not inclusive:
        return StreamPositions(after)
    client = aws_session.client("kinesis")
    return StreamPositions(
        {
            stream: {shard: _before(client, stream, shard, number, sleep) for shard, number in shards.items()}
            for stream, shards in sequence_numbers.items()
        }
    )


def _before(client: Any, stream: str, shard: str, number: str, sleep: Callable[[float], None]) -> ShardPosition:
    try:
        at = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": number}
        records, _ = _read(client, _iterator(client, stream, shard, at, sleep), stream, 1, sleep)
        if not records or records[0]["SequenceNumber"] != number:
            raise InitialPositionError(stream=stream, code="", reason=f"{shard} has no record {number}")
        arrived = records[0]["ApproximateArrivalTimestamp"]
        at = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": arrived}
        iterator: str | None = _iterator(client, stream, shard, at, sleep)
        predecessor: str | None = None
        while iterator is not None:
            records, iterator = _read(client, iterator, stream, 1000, sleep)
            for record in records:
                if int(record["SequenceNumber"]) >= int(number):
                    iterator = None
                    break
                predecessor = record["SequenceNumber"]
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        raise InitialPositionError(stream=stream, code=code, reason=str(error)) from error
    except (BotoCoreError, AwsError) as error:
        raise InitialPositionError(stream=stream, code=type(error).__name__, reason=str(error)) from error
    if predecessor is not None:
        return ShardPosition.after(predecessor)
    return ShardPosition.at_timestamp(round(arrived.timestamp() * 1000))


def _iterator(client: Any, stream: str, shard: str, at: dict[str, Any], sleep: Callable[[float], None]) -> str:
    answer = call_with_retries(
        client.get_shard_iterator, {**StreamIdentity.of(stream).request, "ShardId": shard, **at}, sleep
    )
    return str(answer["ShardIterator"])


def _read(
    client: Any, iterator: str, stream: str, limit: int, sleep: Callable[[float], None]
) -> tuple[list[dict[str, Any]], str | None]:
    request: dict[str, Any] = {"ShardIterator": iterator, "Limit": limit}
    if (arn := StreamIdentity.of(stream).arn) is not None:
        request["StreamARN"] = arn
    answer = call_with_retries(client.get_records, request, sleep)
    return answer["Records"], answer.get("NextShardIterator")
