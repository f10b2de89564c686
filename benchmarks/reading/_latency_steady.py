"""Put to batch in hand on busy shards: enhanced fan-out and our own polling, side by side on the same records.

The emulator, the producer and the readers are a process each. The producer writes the time into each record, by the
machine's monotonic clock; both publishers follow the same shards at the same time.
"""

import asyncio
import math
import multiprocessing
import struct
import time
from collections.abc import Iterator
from contextlib import aclosing
from multiprocessing.connection import Connection

from benchmarks._harness import Case
from penstock.aws import AwsOptions, AwsSession
from penstock.efo_consumer import (
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    RecordPublisherType,
    ShardPosition,
    StreamConsumer,
    StreamPositions,
)
from penstock.emulator.testing import EmulatorProcess, kinesis_client, start_emulator_process

_STREAM = "steady"
_SHARDS = 2
_RECORDS_PER_SECOND = 50
_RECORD_BYTES = 1000
_WARM_UP_SECONDS = 2.0
_ROUND_SECONDS = 6.0
_STAMP = struct.Struct("<q")


def _produce(endpoint_url: str, pipe: Connection) -> None:
    """Put a record to each shard, 50 times a second, until something is sent."""
    client = kinesis_client(endpoint_url)
    keys = [str((2 * shard + 1) * 2**128 // (2 * _SHARDS)) for shard in range(_SHARDS)]
    due = time.monotonic()
    while not pipe.poll(max(0.0, due - time.monotonic())):
        # A producer that was held up does not catch up in a burst.
        due = max(due + 1 / _RECORDS_PER_SECOND, time.monotonic())
        data = _STAMP.pack(time.monotonic_ns()).ljust(_RECORD_BYTES, b".")
        client.put_records(
            StreamName=_STREAM,
            Records=[{"Data": data, "PartitionKey": "k", "ExplicitHashKey": key} for key in keys],
        )


class _Follower:
    """One publisher's latencies, in milliseconds."""

    def __init__(self, aws: AwsOptions, publisher: RecordPublisherType, consumer_arn: str) -> None:
        self.latencies: list[float] = []
        self._aws = aws
        self._publisher = publisher
        self._consumers = (StreamConsumer(_STREAM, consumer_arn),) if publisher is RecordPublisherType.EFO else ()

    async def run(self) -> None:
        """Follow from now on, until cancelled."""
        now = ShardPosition.at_timestamp(int(time.time() * 1000))
        start = StreamPositions({_STREAM: {f"shardId-{shard:012d}": now for shard in range(_SHARDS)}})
        session = self._publisher.value
        async with LocalShardReader(KinesisBackend(AwsSession(self._aws))) as reader:
            request = OpenRequest(
                session_id=session, positions=start, record_publisher=self._publisher, consumers=self._consumers
            )
            epoch = await reader.open(request)
            async with aclosing(reader.follow(session, epoch, start)) as batches:
                async for batch in batches:
                    arrived = time.monotonic_ns()
                    if batch.records is not None:
                        self.latencies += [
                            (arrived - _STAMP.unpack_from(data)[0]) / 1e6
                            for data in batch.records.column("data").to_pylist()
                        ]
                    if batch.reached is not None:
                        await reader.commit(session, epoch, batch.reached.positions)


async def _measure(emulator: EmulatorProcess, arn: str, rounds: int) -> list[tuple[list[float], list[float]]]:
    aws = AwsOptions(
        region="us-east-1",
        endpoint_url=emulator.tls_endpoint_url,
        ca_bundle=str(emulator.ca_file),
        access_key_id="bench",
        secret_access_key="bench",
    )
    efo, polling = (_Follower(aws, kind, arn) for kind in (RecordPublisherType.EFO, RecordPublisherType.POLLING))
    tasks = [asyncio.create_task(follower.run(), name="follow") for follower in (efo, polling)]
    found = []
    try:
        await asyncio.sleep(_WARM_UP_SECONDS)
        for _ in range(rounds):
            efo.latencies, polling.latencies = [], []
            await asyncio.sleep(_ROUND_SECONDS)
            for task in tasks:
                if task.done():
                    task.result()
            found.append((efo.latencies, polling.latencies))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


def run(rounds: int) -> Iterator[Case]:
    """Two cases: p50 and p99."""
    context = multiprocessing.get_context("spawn")
    with start_emulator_process() as emulator:
        client = emulator.client()
        client.create_stream(StreamName=_STREAM, ShardCount=_SHARDS)
        stream_arn = client.describe_stream_summary(StreamName=_STREAM)["StreamDescriptionSummary"]["StreamARN"]
        consumer = client.register_stream_consumer(StreamARN=stream_arn, ConsumerName="bench")["Consumer"]
        arn = consumer["ConsumerARN"]
        while client.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]["ConsumerStatus"] != "ACTIVE":
            time.sleep(0.1)
        pipe, other = context.Pipe()
        producer = context.Process(target=_produce, args=(emulator.endpoint_url, other), name="bench producer")
        producer.start()
        try:
            found = asyncio.run(_measure(emulator, arn, rounds))
        finally:
            pipe.send(None)
            producer.join(10)
            if producer.is_alive():
                producer.kill()
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        yield Case(
            name=f"efo-over-polling-{name}",
            peer_name="penstock-polling",
            unit="ms",
            ours=[_percentile(efo, share) for efo, _ in found],
            peers=[_percentile(polling, share) for _, polling in found],
        )
