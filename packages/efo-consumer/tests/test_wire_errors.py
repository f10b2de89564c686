"""The table of retryable and fatal errors, brought about by the emulator, for each way to read."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from penstock.aws import AwsSession, BackoffPolicy, JsonClient
from penstock.aws.testing import emulator_options
from penstock.efo_consumer._config import RecordPublisherConfig, SubscribeTransportType
from penstock.efo_consumer._diagnosis import KinesisDiagnosis
from penstock.efo_consumer._positions import ShardPosition
from penstock.efo_consumer._publisher import RecordPublisher, RecordPublisherType, ShardEvent, StreamIdentity
from penstock.efo_consumer._publisher_factory import RecordPublisherFactory
from penstock.efo_consumer.errors import (
    RecordPublisherError,
    RecordPublisherFatalError,
    RecordPublisherRetriesError,
    ResourceMissingError,
    SubscriptionTakenOverError,
)
from penstock.emulator import EmulatorConfig, EmulatorServer

ORDERS = StreamIdentity("orders")
SHARD = "shardId-000000000000"
HTTP2, HTTP1 = SubscribeTransportType.HTTP2, SubscribeTransportType.HTTP1
POLLING = None
WAYS = [HTTP2, HTTP1, POLLING]

RETRYABLE = [
    "ProvisionedThroughputExceededException",
    "LimitExceededException",
    "KMSThrottlingException",
    "InternalFailure",
    "InternalFailureException",
    "ServiceUnavailable",
]
FATAL = [
    "AccessDeniedException",
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSAccessDeniedException",
    "KMSNotFoundException",
    "KMSOptInRequired",
    "InvalidArgumentException",
    "ValidationException",
    "ExpiredTokenException",
    "UnrecognizedClientException",
]
QUICK = BackoffPolicy(base=timedelta(milliseconds=10), maximum=timedelta(milliseconds=20), max_attempts=4)


class Kinesis:
    """An emulator with a stream and a consumer, and publishers that read from it."""

    def __init__(self, server: EmulatorServer, resources: AsyncExitStack) -> None:
        self.server = server
        self.resources = resources
        self.client = JsonClient(AwsSession(emulator_options(server.endpoint_url)))
        self.consumer_arn = ""
        self._written = count()

    async def start(self) -> None:
        self.resources.push_async_callback(self.client.close)
        await self.client.call("CreateStream", {"StreamName": "orders", "ShardCount": 1})
        summary = await self.client.call("DescribeStreamSummary", {"StreamName": "orders"})
        arn = summary["StreamDescriptionSummary"]["StreamARN"]
        answer = await self.client.call("RegisterStreamConsumer", {"StreamARN": arn, "ConsumerName": "billing"})
        self.consumer_arn = str(answer["Consumer"]["ConsumerARN"])

    async def put(self, records: int) -> list[bytes]:
        rows = [f"record {next(self._written)}".encode() for _ in range(records)]
        entries = [{"Data": row, "PartitionKey": "k"} for row in rows]
        await self.client.call("PutRecords", {"StreamName": "orders", "Records": entries})
        return rows

    def publisher(self, way: SubscribeTransportType | None, **changes: Any) -> RecordPublisher:
        settings: dict[str, Any] = {
            "resubscribe_interval": timedelta(seconds=0.1),
            "resource_in_use_patience": timedelta(seconds=5),
            "subscribe_to_shard": QUICK,
            "get_records": QUICK,
            "get_shard_iterator": QUICK,
        }
        config = RecordPublisherConfig(
            record_publisher=RecordPublisherType.POLLING if way is None else RecordPublisherType.EFO,
            subscribe_transport=way or SubscribeTransportType.AUTO,
            **{**settings, **changes},
        )
        url = self.server.tls_endpoint_url if way is HTTP2 else self.server.endpoint_url
        publisher = RecordPublisherFactory().build_record_publisher(
            config, AwsSession(emulator_options(url, str(self.server.ca_file))), {"orders": self.consumer_arn}
        )
        self.resources.push_async_callback(publisher.close)
        return publisher

    @property
    def hits(self) -> int:
        return sum(fault["hits"] for fault in self.server.faults.list())


@asynccontextmanager
async def kinesis(**changes: Any) -> AsyncIterator[Kinesis]:
    defaults: dict[str, Any] = {
        "enforce_limits": False,
        "idle_event_interval": timedelta(seconds=0.1),
        "resubscribe_interval": timedelta(seconds=0.1),
        "consumer_creation_delay": timedelta(0),
    }
    async with asyncio.timeout(60), AsyncExitStack() as resources:
        server = await resources.enter_async_context(EmulatorServer(EmulatorConfig(**{**defaults, **changes})))
        opened = Kinesis(server, resources)
        await opened.start()
        yield opened


async def read(publisher: RecordPublisher, records: int, *, shard_id: str = SHARD) -> list[bytes]:
    found: list[bytes] = []
    async with aclosing(publisher.publish(ORDERS, shard_id, ShardPosition.trim_horizon())) as events:
        async for event in events:
            found += event.records.column("data").to_pylist()
            if len(found) >= records:
                break
    return found


async def read_around(opened: Kinesis, way: SubscribeTransportType | None, fault: Callable[[], str]) -> None:
    """Read five records, add a fault, and read five more by the same generator."""
    first = await opened.put(5)
    found: list[bytes] = []
    second: list[bytes] = []
    events = opened.publisher(way).publish(ORDERS, SHARD, ShardPosition.trim_horizon())
    async with aclosing(events):
        async for event in events:
            found += event.records.column("data").to_pylist()
            if len(found) == len(first) and not second:
                fault()
                second = await opened.put(5)
            if len(found) >= 10:
                break
    assert found == first + second
    assert opened.hits > 0


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


@pytest.mark.parametrize("kind", ["reset", "silence"])
async def test_a_broken_poll_is_repeated(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GetRecords that is cut off or never answered is asked again with the same iterator."""
    async with kinesis() as opened:
        rows = await opened.put(5)
        opened.server.faults.add(kind, operation="GetRecords", count=1)
        publisher = opened.publisher(POLLING)
        client = publisher._client
        monkeypatch.setattr(client, "_timeout", client._timeout.__class__(total=0.5))
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


@pytest.mark.parametrize("code", FATAL)
@pytest.mark.parametrize("way", WAYS)
async def test_what_cannot_pass_is_told_at_once(way: SubscribeTransportType | None, code: str) -> None:
    """A fatal code is raised at its first answer, and says what was answered."""
    async with kinesis() as opened:
        await opened.put(5)
        operation = "GetShardIterator" if way is POLLING else "SubscribeToShard"
        opened.server.faults.add("error", operation=operation, code=code, message="said so")
        with pytest.raises(RecordPublisherFatalError, match="said so") as caught:
            await read(opened.publisher(way), 5)
        assert (caught.value.stream, caught.value.shard_id, caught.value.code) == ("orders", SHARD, code)
        assert opened.hits == 1


@pytest.mark.parametrize("code", [code for code in FATAL if code.startswith("KMS")])
@pytest.mark.parametrize("way", [HTTP2, HTTP1, POLLING])
async def test_a_key_that_is_lost_while_reading_is_fatal(way: SubscribeTransportType | None, code: str) -> None:
    """What happens to the key ends reading inside the stream, and in the middle of polling, with advice."""
    async with kinesis() as opened:
        await opened.put(5)
        kind = "error" if way is POLLING else "stream_error"
        operation = "GetRecords" if way is POLLING else "SubscribeToShard"
        opened.server.faults.add(kind, operation=operation, code=code, skip=1)
        with pytest.raises(RecordPublisherFatalError) as caught:
            await read(opened.publisher(way), 6)
        assert caught.value.code == code
        assert opened.hits == 1


@pytest.mark.parametrize("way", WAYS)
async def test_what_does_not_pass_is_given_up(way: SubscribeTransportType | None) -> None:
    """An error that is retryable and stays is told after the attempts that are allowed."""
    async with kinesis() as opened:
        operation = "GetRecords" if way is POLLING else "SubscribeToShard"
        opened.server.faults.add("error", operation=operation, code="InternalFailure", status=500)
        with pytest.raises(RecordPublisherRetriesError) as caught:
            await read(opened.publisher(way), 5)
        assert caught.value.attempts == opened.hits == QUICK.max_attempts


@pytest.mark.parametrize("way", [HTTP2, HTTP1])
async def test_throttling_uses_no_attempts(way: SubscribeTransportType) -> None:
    """More refusals in a row than there are attempts are waited out, if they are throttling."""
    async with kinesis() as opened:
        rows = await opened.put(5)
        hits = QUICK.max_attempts + 3
        opened.server.faults.add("throttle", operation="SubscribeToShard", count=hits)
        assert await read(opened.publisher(way), 5) == rows
        assert opened.hits == hits


async def test_throttling_that_stays_is_given_up() -> None:
    """When patience with throttling is over, each refusal is a failed attempt."""
    async with kinesis() as opened:
        opened.server.faults.add("throttle", operation="SubscribeToShard")
        with pytest.raises(RecordPublisherRetriesError) as caught:
            await read(opened.publisher(HTTP1, resource_in_use_patience=timedelta(seconds=0.1)), 5)
        assert caught.value.code == "LimitExceededException"
        assert opened.hits > QUICK.max_attempts


async def _delete_stream(opened: Kinesis) -> None:
    await opened.client.call("DeleteStream", {"StreamName": "orders", "EnforceConsumerDeletion": True})


async def _deregister(opened: Kinesis) -> None:
    await opened.client.call("DeregisterStreamConsumer", {"ConsumerARN": opened.consumer_arn})


async def _nothing(opened: Kinesis) -> None:
    pass


@pytest.mark.parametrize(
    ("way", "remove", "resource"),
    [
        *((way, _delete_stream, "stream") for way in WAYS),
        *((way, _deregister, "consumer") for way in (HTTP2, HTTP1)),
        *((way, _nothing, "shard") for way in WAYS),
    ],
)
async def test_what_is_missing_is_told(
    way: SubscribeTransportType | None, remove: Callable[[Kinesis], Awaitable[None]], resource: str
) -> None:
    """One code of the service becomes an error that names the stream, the consumer or the shard as missing."""
    async with kinesis() as opened:
        await remove(opened)
        shard_id = "shardId-000000000099" if resource == "shard" else SHARD
        with pytest.raises(ResourceMissingError, match=resource) as caught:
            await read(opened.publisher(way), 1, shard_id=shard_id)
        assert (caught.value.resource, caught.value.code) == (resource, "ResourceNotFoundException")


async def _exhaust(events: AsyncGenerator[ShardEvent, None]) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize("way", [HTTP2, HTTP1])
async def test_a_consumer_that_goes_while_it_is_read_is_missing(way: SubscribeTransportType) -> None:
    """Deregistering ends a subscription from within; the reader says so, and does not take it for the shard's end."""
    async with kinesis() as opened:
        await opened.put(1)
        async with aclosing(opened.publisher(way).publish(ORDERS, SHARD, ShardPosition.trim_horizon())) as events:
            await anext(events)
            await _deregister(opened)
            with pytest.raises(ResourceMissingError) as caught:
                await _exhaust(events)
        assert caught.value.resource == "consumer"


async def test_what_cannot_be_told_is_left_open() -> None:
    """If Kinesis does not answer what is missing either, the error says that one of them is."""
    async with kinesis() as opened:
        for operation in ("DescribeStreamSummary", "DescribeStreamConsumer"):
            opened.server.faults.add("throttle", operation=operation)
        with pytest.raises(ResourceMissingError) as caught:
            await read(opened.publisher(HTTP1), 1, shard_id="shardId-000000000099")
        assert caught.value.resource is None


async def test_a_thousand_shards_ask_once_for_the_state_of_their_consumer() -> None:
    """Questions of the same moment share a call: DescribeStreamConsumer allows 20 a second."""
    async with kinesis() as opened:
        diagnosis = KinesisDiagnosis(opened.client, clock=lambda: 0.0)
        opened.server.faults.add("delay", operation="DescribeStreamConsumer", seconds=0.01)
        states = await asyncio.gather(*(diagnosis.consumer_status(opened.consumer_arn) for _ in range(1000)))
        assert set(states) == {"ACTIVE"}
        assert opened.hits == 1


async def outcomes(opened: Kinesis, publisher: RecordPublisher, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How the publisher's subscriptions ended, until the first record."""
    ended: list[str] = []
    monkeypatch.setattr(publisher._metrics, "subscription_ended", lambda *, outcome, **_: ended.append(outcome))
    await read(publisher, 1)
    return ended


async def test_a_consumer_that_is_created_is_told_from_one_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """One code of the service is waited out in both cases, and counted apart."""
    async with kinesis(
        consumer_creation_delay=timedelta(seconds=0.5), resubscribe_interval=timedelta(seconds=1)
    ) as opened:
        await opened.put(1)
        found = await outcomes(opened, opened.publisher(HTTP1), monkeypatch)
        assert set(found[:-1]) == {"consumer_not_active"}
        found = await outcomes(opened, opened.publisher(HTTP1), monkeypatch)
        assert "held_by_another" in found
        assert set(found[:-1]) <= {"held_by_another", "consumer_not_active"}


async def test_a_take_over_names_both_readers(caplog: pytest.LogCaptureFixture) -> None:
    """Of two jobs that share a consumer one is told, by their names, who holds the subscription; the other reads on."""
    async with kinesis() as opened:
        await opened.put(1)
        caplog.set_level(logging.WARNING, logger="penstock.efo_consumer")
        publishers = [opened.publisher(HTTP1, reader_name=name) for name in ("job-a", "job-b")]
        tasks = [asyncio.create_task(read(publisher, 2)) for publisher in publishers]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        error = done.pop().exception()
        assert isinstance(error, SubscriptionTakenOverError)
        assert {error.reader, error.other_reader} == {"job-a", "job-b"}
        assert error.times == QUICK.max_attempts
        assert opened.consumer_arn in str(error)
        assert any("job-a" in line and "job-b" in line for line in caplog.messages)
        await opened.put(1)
        assert len(await pending.pop()) == 2


async def test_an_active_consumer_that_stays_in_use_is_held_by_another() -> None:
    """A reader that never gets its turn is told that somebody holds the consumer, not that attempts failed."""
    async with kinesis() as opened:
        opened.server.faults.add("error", operation="SubscribeToShard", code="ResourceInUseException")
        publisher = opened.publisher(HTTP1, resource_in_use_patience=timedelta(seconds=0.1), reader_name="job-a")
        with pytest.raises(SubscriptionTakenOverError) as caught:
            await read(publisher, 1)
        assert (caught.value.reader, caught.value.other_reader) == ("job-a", None)
        assert isinstance(caught.value, RecordPublisherError)
