"""Operations on records: putting them, iterating over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.emulator._state.positions import ShardIterator, resolve_position
from penstock.emulator._state.sequence import MAX_HASH_KEY, hash_key
from penstock.emulator.errors import KinesisError, invalid_argument, throughput_exceeded

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.emulator._state.kinesis import Kinesis
    from penstock.emulator._state.records import RecordSlice
    from penstock.emulator._state.shard import Shard
    from penstock.emulator._state.stream import Stream


class Page(NamedTuple):
    """The records of a call, and where the next one starts."""

    records: RecordSlice
    position: int
    since: float
    """The time, in seconds since the epoch, up to which the shard was looked through."""
    millis_behind_latest: int
    is_last: bool
    """Whether the shard has ended, and all of it was read."""


def next_page(
    shard: Shard,
    position: int,
    since: float,
    *,
    max_records: int,
    max_bytes: int,
    now: float,
    lag_seconds: float,
    span: timedelta | None,
) -> Page:
    """Read a page from `position` on.

    Args:
        shard: the shard to read.
        position: the position of the first record that is wanted.
        since: the time up to which earlier pages have looked through the shard.
        max_records: how many records the page may have.
        max_bytes: how many bytes; a single record may have more.
        now: the time of the call.
        lag_seconds: the records of the last so many seconds are not visible yet.
        span: how much time the page may look through; None: all there is.
    """
    visible_until = now - lag_seconds if lag_seconds > 0 else None
    # Nothing arrives in a shard that is closed, so nothing has to be looked through after that.
    end = now if shard.closed is None else min(now, shard.closed)
    stops_at = since + span.total_seconds() if span is not None and since + span.total_seconds() < end else None
    bounds = [bound for bound in (visible_until, stops_at) if bound is not None]
    until = min(bounds) if bounds else None
    records = shard.read(position, max_records=max_records, max_bytes=max_bytes, until=until)
    if records:
        position = records.last_counter + 1
    if records and shard.has_records(position, until=until):
        # The page is full: the next page begins at the same time.
        return Page(records, position, records[-1].arrival_ms / 1000, shard.millis_behind(position, now), False)
    if stops_at is not None:
        assert until is not None
        return Page(records, position, max(since, until), max(1, int((now - until) * 1000)), False)
    behind = 0 if visible_until is not None else shard.millis_behind(position, now)
    return Page(records, position, max(since, end if until is None else until), behind, shard.exhausted(position))


_MAX_READ_RECORDS = 10_000
_MAX_READ_BYTES = 10 * 1024 * 1024


def put_record(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """PutRecord."""
    stream = kinesis.find_stream(params)
    stream.require_readable(now)
    ordering = params.get("SequenceNumberForOrdering")
    size = _size(stream, params, "")
    shard = stream.shard_for(_hash_key(params))
    if ordering is not None and not any(s.position_of(ordering) is not None for s in stream.shards):
        raise invalid_argument(f"ExclusiveMinimumSequenceNumber {ordering} used in PutRecord is invalid.")
    if not shard.admit_write(size, now):
        raise throughput_exceeded(_rate_exceeded(kinesis, stream, shard))
    encrypted = stream.encryption_key is not None
    sequence_number = shard.append(
        partition_key=params["PartitionKey"], data=params["Data"], size_bytes=size, now=now, encrypted=encrypted
    )
    shard.notify()
    return {"ShardId": shard.id, "SequenceNumber": sequence_number, **_encryption(stream)}


def put_records(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """PutRecords: each record for itself, in the order of the request; refused ones carry an ErrorCode."""
    stream = kinesis.find_stream(params)
    stream.require_readable(now)
    entries = params["Records"]
    sizes = [_size(stream, entry, f"records.{index}.member.") for index, entry in enumerate(entries, 1)]
    if sum(sizes) > kinesis.config.max_request_bytes:
        raise invalid_argument(f"Records size exceeds the limit of {kinesis.config.max_request_bytes} bytes.")
    keys = [_hash_key(entry) for entry in entries]
    shards = [stream.shard_for(key) for key in keys]
    refused = kinesis.faults.on_records(stream.name, [shard.id for shard in shards]) if kinesis.faults else {}
    encrypted = stream.encryption_key is not None
    results: list[dict[str, str]] = []
    failed = 0
    written: set[Shard] = set()
    for index, (entry, size, shard) in enumerate(zip(entries, sizes, shards, strict=True)):
        if index in refused:
            failed += 1
            results.append({"ErrorCode": refused[index].code, "ErrorMessage": refused[index].message})
            continue
        if not shard.admit_write(size, now):
            failed += 1
            results.append(
                {
                    "ErrorCode": "ProvisionedThroughputExceededException",
                    "ErrorMessage": _rate_exceeded(kinesis, stream, shard),
                }
            )
            continue
        sequence_number = shard.append(
            partition_key=entry["PartitionKey"], data=entry["Data"], size_bytes=size, now=now, encrypted=encrypted
        )
        written.add(shard)
        results.append({"SequenceNumber": sequence_number, "ShardId": shard.id})
    for shard in written:
        shard.notify()
    return {"FailedRecordCount": failed, "Records": results, **_encryption(stream)}


def get_shard_iterator(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """GetShardIterator; LATEST is resolved here, once."""
    stream = kinesis.find_stream(params)
    stream.require_readable(now)
    shard = stream.shard(params["ShardId"])
    behaviour = kinesis.behaviour
    start = resolve_position(
        shard,
        kind=params["ShardIteratorType"],
        sequence_number=params.get("StartingSequenceNumber"),
        timestamp=params.get("Timestamp"),
        horizon=stream.horizon(now),
        now=now,
        behaviour=behaviour,
        continuations=not behaviour.refuse_continuations,
    )
    iterator = ShardIterator(
        now, stream.name, stream.created, shard.id, start.position, start.since, behaviour.empty_answers
    )
    return {"ShardIterator": kinesis.tokens.seal_iterator(iterator)}


def get_records(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """GetRecords; at the end of a closed shard the next iterator is null and the children are named."""
    iterator = kinesis.tokens.open_iterator(params["ShardIterator"])
    if iterator is None:
        raise invalid_argument("Invalid ShardIterator.")
    made, name, created, shard_id, position, since, empty_answers = iterator
    lifetime = kinesis.config.shard_iterator_lifetime.total_seconds()
    if now - made > lifetime:
        raise KinesisError(
            "ExpiredIteratorException",
            f"Iterator expired. The iterator was created at time {made:.3f} while right now it is {now:.3f} which is "
            f"further in the future than the tolerated delay of {int(lifetime * 1000)} milliseconds.",
        )
    stream = kinesis.find_stream({"StreamName": name, "StreamARN": params.get("StreamARN")})
    if stream.created != created:
        raise invalid_argument(f"Invalid ShardIterator. It belongs to a stream {name} that was deleted.")
    stream.require_readable(now)
    shard = stream.shard(shard_id)
    if not shard.admit_read(now):
        raise throughput_exceeded(_rate_exceeded(kinesis, stream, shard))
    behaviour = kinesis.behaviour
    if behaviour.refuse_expired_ahead and position < shard.trimmed_to:
        raise KinesisError(
            "ExpiredIteratorException", "Iterator expired. Records after it are older than the retention."
        )
    if empty_answers and (not shard.is_open or shard.has_records(position)):
        following = iterator._replace(made=now, empty_answers=empty_answers - 1)
        return {
            "Records": [],
            "MillisBehindLatest": shard.millis_behind(position, now) if shard.is_open else 0,
            "NextShardIterator": kinesis.tokens.seal_iterator(following),
        }
    page = next_page(
        shard,
        position,
        max(since, stream.horizon(now), shard.created),
        max_records=params.get("Limit", _MAX_READ_RECORDS),
        max_bytes=_MAX_READ_BYTES,
        now=now,
        lag_seconds=_lag_seconds(kinesis, stream, shard),
        span=behaviour.page_span,
    )
    shard.charge_read(page.records.size_bytes)
    answer: dict[str, Any] = {
        "Records": msgspec.Raw(b"[" + b",".join(page.records.encoded) + b"]"),
        "MillisBehindLatest": page.millis_behind_latest,
        "NextShardIterator": None,
    }
    empty_answers = behaviour.empty_answers if page.records else 0
    if page.is_last and not empty_answers:
        answer["ChildShards"] = shard.child_shards()
    else:
        following = ShardIterator(now, stream.name, stream.created, shard.id, page.position, page.since, empty_answers)
        answer["NextShardIterator"] = kinesis.tokens.seal_iterator(following)
    return answer


def _lag_seconds(kinesis: Kinesis, stream: Stream, shard: Shard) -> float:
    most = kinesis.behaviour.get_records_lag.total_seconds()
    # Every other call is not behind, or a reader would see nothing while a manual clock stands still.
    chance = kinesis.conduct.next_draw("lag", stream.name, shard.id) if most else 0.0
    return (2 * chance - 1) * most if chance > 0.5 else 0.0


def _size(stream: Stream, entry: dict[str, Any], path: str) -> int:
    key = entry.get("PartitionKey")
    if key is None:
        # The model leaves the key out for streams with the AUTO distribution; all others must give one.
        raise KinesisError(
            "ValidationException",
            f"1 validation error detected: Value null at '{path}partitionKey' failed to satisfy constraint: "
            "Member must not be null",
        )
    size = len(entry["Data"]) + len(key.encode())
    if size > stream.max_record_bytes:
        raise KinesisError(
            "ValidationException",
            f"1 validation error detected: Value at '{path}data' failed to satisfy constraint: "
            f"Member must have length less than or equal to {stream.max_record_bytes}",
        )
    return size


def _hash_key(entry: dict[str, Any]) -> int:
    explicit = entry.get("ExplicitHashKey")
    if explicit is None:
        return hash_key(entry["PartitionKey"])
    key = int(explicit)
    if key > MAX_HASH_KEY:
        raise invalid_argument(
            f"Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. Specified value was {key}"
        )
    return key


def _encryption(stream: Stream) -> dict[str, str]:
    return {"EncryptionType": "KMS"} if stream.encryption_key is not None else {}


def _rate_exceeded(kinesis: Kinesis, stream: Stream, shard: Shard) -> str:
    return f"Rate exceeded for shard {shard.id} in stream {stream.name} under account {kinesis.config.account_id}."
