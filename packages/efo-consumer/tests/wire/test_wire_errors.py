"""Errors that pass, brought about by the emulator, for each way to read: nothing is lost, nothing comes twice."""

from __future__ import annotations

from contextlib import aclosing
from datetime import timedelta

import pytest
from wire_errors_kinesis import (
    COUNTED,
    HTTP1,
    HTTP2,
    ORDERS,
    POLLING,
    RETRYABLE,
    SHARD,
    WAYS,
    kinesis,
    read,
    read_around,
)

from penstock.efo_consumer import PollingRecordPublisher, ShardPosition, SubscribeTransportType
from penstock.efo_consumer.errors import (
    RecordPublisherRetriesError,
)


@pytest.mark.parametrize("code", RETRYABLE)
@pytest.mark.parametrize("way", WAYS)
async def test_a_refused_call_is_made_again(way: SubscribeTransportType | None, code: str) -> None:
    """Codes that pass are retried where a shard is begun, and every record comes once."""
    async with kinesis() as opened:
        rows = await opened.put(5)
        for operation in ("SubscribeToShard", "GetShardIterator", "GetRecords"):
            opened.server.faults.add("error", operation=operation, code=code, count=2)
        assert await read(opened.publisher(way), 5) == rows
        assert opened.hits == (4 if way is POLLING else 2)


@pytest.mark.parametrize("code", [*RETRYABLE, "ResourceInUseException"])
@pytest.mark.parametrize("way", [HTTP2, HTTP1])
async def test_an_exception_inside_the_stream_is_resumed(way: SubscribeTransportType, code: str) -> None:
    """After an exception in place of an event the subscription goes on where it was, without gap or repeat."""
    async with kinesis() as opened:
        await read_around(opened, way, lambda: opened.server.faults.add("stream_error", code=code, count=2))


@pytest.mark.parametrize("code", RETRYABLE)
async def test_a_poll_that_is_refused_in_the_middle_is_resumed(code: str) -> None:
    """Between two answers a refusal costs no record, and doubles none."""
    async with kinesis() as opened:
        faults = opened.server.faults
        await read_around(opened, POLLING, lambda: faults.add("error", operation="GetRecords", code=code, count=2))


@pytest.mark.parametrize("status", [500, 502, 504])
@pytest.mark.parametrize("way", WAYS)
async def test_a_server_error_of_any_name_is_retried(way: SubscribeTransportType | None, status: int) -> None:
    """What stands between a reader and Kinesis has errors of its own: the status decides."""
    async with kinesis() as opened:
        rows = await opened.put(5)
        for operation in ("SubscribeToShard", "GetShardIterator", "GetRecords"):
            opened.server.faults.add("error", operation=operation, code="BadGateway", status=status, count=2)
        assert await read(opened.publisher(way), 5) == rows
        assert opened.hits == (4 if way is POLLING else 2)


@pytest.mark.parametrize("way", [HTTP2, HTTP1])
async def test_a_subscription_that_is_not_answered_in_time_is_asked_for_again(way: SubscribeTransportType) -> None:
    """A call that hangs before it is accepted ends at the time-out, and the next one is made."""
    async with kinesis() as opened:
        rows = await opened.put(5)
        opened.server.faults.add("delay", operation="SubscribeToShard", seconds=30, count=1)
        publisher = opened.publisher(way, connect_timeout=timedelta(seconds=0.5))
        assert await read(publisher, 5) == rows
        assert opened.hits == 1


@pytest.mark.parametrize("kind", ["reset", "silence", "corrupt_crc"])
@pytest.mark.parametrize("way", [HTTP2, HTTP1])
async def test_a_broken_subscription_is_resumed(way: SubscribeTransportType, kind: str) -> None:
    """A reset, silence beyond the limit and a wrong checksum cost no record, and double none."""
    async with kinesis() as opened:
        publisher = opened.publisher(way, subscription_silence=timedelta(seconds=0.5))
        opened.server.faults.add(kind, operation="SubscribeToShard", skip=1, count=2)
        rows = await opened.put(5)
        found: list[bytes] = []
        async with aclosing(publisher.publish(ORDERS, SHARD, ShardPosition.trim_horizon())) as events:
            async for event in events:
                found += event.records.column("data").to_pylist()
                if opened.hits == 2 and len(rows) == 5:
                    rows += await opened.put(5)
                if len(found) >= 10:
                    break
        assert found == rows


@pytest.mark.parametrize("way", [HTTP2, HTTP1])
async def test_a_slow_line_is_not_silent(way: SubscribeTransportType) -> None:
    """An event that takes longer than the limit of silence arrives, if its bytes keep coming."""
    async with kinesis() as opened:
        rows = await opened.put(20)
        opened.server.faults.add("drip", operation="SubscribeToShard", bytes_per_second=4000, count=1)
        publisher = opened.publisher(way, subscription_silence=timedelta(seconds=0.4))
        assert await read(publisher, 20) == rows


@pytest.mark.parametrize("operation", ["GetShardIterator", "GetRecords"])
@pytest.mark.parametrize("kind", ["reset", "silence"])
async def test_a_broken_poll_is_repeated(kind: str, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is cut off or never answered is made again, for records with the same iterator."""
    async with kinesis() as opened:
        rows = await opened.put(5)
        opened.server.faults.add(kind, operation=operation, count=1)
        publisher = opened.publisher(POLLING)
        assert isinstance(publisher, PollingRecordPublisher)
        monkeypatch.setattr(publisher._client, "_total_timeout_seconds", 0.5)
        assert await read(publisher, 5) == rows
        assert opened.hits == 1


async def test_an_expired_iterator_is_replaced() -> None:
    """A reader whose iterator expires fetches a new one behind its last record."""
    async with kinesis() as opened:
        faults = opened.server.faults
        await read_around(
            opened,
            POLLING,
            lambda: faults.add("error", operation="GetRecords", code="ExpiredIteratorException", count=1),
        )


@pytest.mark.parametrize("kind", ["error", "throttle"])
@pytest.mark.parametrize("way", WAYS)
async def test_attempts_that_are_counted_are_used_up(way: SubscribeTransportType | None, kind: str) -> None:
    """Once a number of attempts is given it decides, about throttling too, as with Flink."""
    async with kinesis() as opened:
        operation = "GetRecords" if way is POLLING else "SubscribeToShard"
        code = {"code": "InternalFailure"} if kind == "error" else {}
        opened.server.faults.add(kind, operation=operation, **code)
        counted = {"subscribe_to_shard": COUNTED, "get_records": COUNTED}
        with pytest.raises(RecordPublisherRetriesError, match=r"4 attempts in a row .*maxretries allows") as caught:
            await read(opened.publisher(way, **counted), 5)
        assert caught.value.attempts == opened.hits == COUNTED.max_attempts


async def test_iterators_that_expire_are_not_counted() -> None:
    """Flink takes a new iterator however often: only the patience bounds that."""
    async with kinesis() as opened:
        rows = await opened.put(5)
        opened.server.faults.add("error", operation="GetRecords", code="ExpiredIteratorException", count=9)
        assert await read(opened.publisher(POLLING, get_records=COUNTED, get_shard_iterator=COUNTED), 5) == rows
        assert opened.hits == 9


@pytest.mark.parametrize("way", WAYS)
async def test_what_does_not_pass_is_given_up_after_the_patience(way: SubscribeTransportType | None) -> None:
    """An error names the shard, the call, since when it fails, the last cause and what to do."""
    async with kinesis() as opened:
        operation = "GetRecords" if way is POLLING else "SubscribeToShard"
        opened.server.faults.add("error", operation=operation, code="InternalFailure", message="out of order")
        with pytest.raises(RecordPublisherRetriesError) as caught:
            await read(opened.publisher(way, retry_patience=timedelta(seconds=1)), 5)
        words = str(caught.value)
        assert words.startswith(f"orders/{SHARD}: {operation}: every attempt has failed for ")
        for part in ("s, since 20", "(retryPatience)", "out of order", "check network, endpoint, credentials"):
            assert part in words
        assert caught.value.attempts == opened.hits > 4
        assert caught.value.code == "InternalFailure"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["error", "throttle"])
async def test_what_passes_within_the_patience_is_borne(way: SubscribeTransportType | None, kind: str) -> None:
    """However many attempts it takes: by default nothing but the time decides."""
    async with kinesis() as opened:
        rows = await opened.put(5)
        operation = "GetRecords" if way is POLLING else "SubscribeToShard"
        code = {"code": "ServiceUnavailable"} if kind == "error" else {}
        opened.server.faults.add(kind, operation=operation, count=30, **code)
        assert await read(opened.publisher(way), 5) == rows
        assert opened.hits == 30


async def test_throttling_that_stays_says_what_to_do() -> None:
    """A shard that is always read too often ends the read after the patience, with advice of its own."""
    async with kinesis() as opened:
        opened.server.faults.add("throttle", operation="GetRecords")
        with pytest.raises(RecordPublisherRetriesError, match="enhanced fan-out") as caught:
            await read(opened.publisher(POLLING, retry_patience=timedelta(seconds=0.5)), 5)
        assert caught.value.code == "ProvisionedThroughputExceededException"
