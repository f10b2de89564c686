"""The cases of `hatch run bench latency`: from a put to its row in the reader's hands, on a stream that is mostly idle.

There the peer is what most Python consumers do: boto3's GetRecords in a loop, as often as Kinesis allows for a shard (5
times a second). Both read the same emulator, in turn. On busy shards the peer is our own polling.
"""

import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks._harness import Case, interleave
from benchmarks.reading import _latency_steady
from penstock.aws import AwsOptions
from penstock.efo_consumer import (
    ReaderConfig,
    ReaderHost,
    RecordPublisherType,
    ShardPosition,
    StreamConsumer,
    StreamPositions,
    ranges_between,
    read_ranges,
)
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.rpc import ClientSecurity

_STREAM = "latency"
_PUTS_PER_ROUND = 20
# 5 calls a second are what GetRecords allows on a shard.
_POLL_SECONDS = 0.2
# Longer than a poll, and without its rhythm: a put falls anywhere between two polls.
_PAUSE_SECONDS = (0.2, 0.4)
_SHARD = "shardId-000000000000"


def _median_millis(put: Callable[[], object], await_row: Callable[[], None]) -> float:
    latencies = []
    pauses = random.Random(1)
    for _ in range(_PUTS_PER_ROUND):
        time.sleep(pauses.uniform(*_PAUSE_SECONDS))
        start = time.perf_counter()
        put()
        await_row()
        latencies.append((time.perf_counter() - start) * 1000)
    return sorted(latencies)[len(latencies) // 2]


class _Penstock:
    """Positions, then the exact range over gRPC, as Spark's driver and task do it."""

    def __init__(self, emulator: RunningEmulator, consumer_arn: str, record_publisher: RecordPublisherType) -> None:
        aws = AwsOptions(
            region="us-east-1",
            endpoint_url=emulator.tls_endpoint_url,
            ca_bundle=str(emulator.ca_file),
            access_key_id="bench",
            secret_access_key="bench",
        )
        self._host = ReaderHost(config=ReaderConfig(), aws=aws, token="a-token-of-this-benchmark-with-32-characters")
        self._session = f"bench-{record_publisher.value}"
        self._at = StreamPositions({_STREAM: {_SHARD: ShardPosition.at_timestamp(int(time.time() * 1000))}})
        self._host.start()
        consumers = [StreamConsumer(_STREAM, consumer_arn)] if record_publisher is RecordPublisherType.EFO else []
        self._host.reader.open(self._session, self._at, record_publisher, consumers)

    def await_row(self) -> None:
        """Return when a row was read."""
        rows = 0
        while not rows:
            end = self._host.reader.positions(self._at, wait_seconds=10).positions
            ranges = ranges_between(self._at, end)
            security = ClientSecurity(token=self._host.token)
            batches = read_ranges(self._host.address, security, self._session, ranges)
            rows = sum(batch.num_rows for batch in batches)
            self._at = end

    def skip(self) -> None:
        """Go to the tip: what came meanwhile was another's."""
        while (end := self._host.reader.positions(self._at, wait_seconds=_POLL_SECONDS).positions) != self._at:
            self._at = end

    def close(self) -> None:
        """End the subscription."""
        self._host.close()


class _Polling:
    """boto3's GetRecords, every 200 ms."""

    def __init__(self, client: Any) -> None:
        self._client = client
        answer = client.get_shard_iterator(StreamName=_STREAM, ShardId=_SHARD, ShardIteratorType="LATEST")
        self._iterator = answer["ShardIterator"]
        self._next = time.monotonic()

    def _poll(self) -> int:
        now = time.monotonic()
        # The loop polled on while the caller was away: the next poll keeps its rhythm.
        self._next += _POLL_SECONDS * max(0, math.ceil((now - self._next) / _POLL_SECONDS))
        time.sleep(max(0.0, self._next - now))
        self._next += _POLL_SECONDS
        answer = self._client.get_records(ShardIterator=self._iterator)
        self._iterator = answer["NextShardIterator"]
        return len(answer["Records"])

    def await_row(self) -> None:
        """Return when a row was read."""
        while not self._poll():
            pass

    def skip(self) -> None:
        """Go to the tip: what came meanwhile was another's."""
        while self._poll():
            pass


def run(rounds: int) -> Iterator[Case]:
    """Enhanced fan-out on an idle stream against boto3, and on busy shards against our own polling."""
    yield from _put_to_row(rounds)
    yield from _latency_steady.run(rounds)


def _put_to_row(rounds: int) -> Iterator[Case]:
    with ExitStack() as stack:
        # Two readers poll the shard in turn here; the limit is kept by each one's own pace.
        emulator = stack.enter_context(running_emulator(shard_read_calls_per_second=100))
        client = emulator.client()
        client.create_stream(StreamName=_STREAM, ShardCount=1)
        arn = client.describe_stream_summary(StreamName=_STREAM)["StreamDescriptionSummary"]["StreamARN"]
        consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="bench")["Consumer"]["ConsumerARN"]
        ours = _Penstock(emulator, consumer, RecordPublisherType.EFO)
        stack.callback(ours.close)
        polling = _Polling(client)

        def put() -> None:
            client.put_record(StreamName=_STREAM, Data=b"x" * 1000, PartitionKey="k")

        def measure_polling() -> float:
            polling.skip()
            return _median_millis(put, polling.await_row)

        def measure_ours() -> float:
            ours.skip()
            return _median_millis(put, ours.await_row)

        yield interleave(
            "put-to-row", measure_ours, measure_polling, peer_name="boto3-get-records", unit="ms", rounds=rounds
        )
