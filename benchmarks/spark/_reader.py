"""A shard reader in a process of its own, whose buffers hold all that Spark reads of it.

Its shards have the names that the emulator gives, where the plugin looks them up.
"""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from benchmarks.spark._floor import RECORD_BYTES
from penstock.efo_consumer import ReaderConfig, ReaderHost, ShardEvent
from penstock.efo_consumer.testing import FakeKinesis, FakeShard

STREAM = "source"
SHARDS = 4
EVENT_RECORDS = 1100
"""1 MiB and more, as subscriptions to a busy shard bring it."""
_FIRST_NUMBER = 10**55
"""As long as Kinesis' own, but without a time in it."""


class _Prefilled(FakeKinesis):
    """Creates each event once. New sessions reuse it."""

    def __init__(self) -> None:
        super().__init__(event_records=EVENT_RECORDS)
        self.tip = _FIRST_NUMBER
        self._made: dict[tuple[str, int], ShardEvent] = {}

    def _take(self, shard: FakeShard, at: int, idle: int) -> ShardEvent:
        if at == len(shard.sequence_numbers):
            return super()._take(shard, at, idle)
        key = shard.shard_id, at
        if key not in self._made:
            self._made[key] = super()._take(shard, at, idle)
        return self._made[key]


def _run(records: int, pipe: Connection) -> None:
    kinesis = _Prefilled()
    shards = kinesis.create_stream(STREAM, SHARDS)
    # In turns, as the shards of a stream are written: a micro-batch takes what arrived at about the same time.
    for _ in range(records // SHARDS):
        for shard in shards:
            kinesis.put(STREAM, shard, size=RECORD_BYTES)
    for shard in shards:
        for at in range(0, records // SHARDS, EVENT_RECORDS):
            kinesis._take(kinesis.shards[STREAM, shard], at, 0)
    nbytes = 2 * records * RECORD_BYTES
    config = ReaderConfig(buffer_bytes_per_shard=nbytes, buffer_bytes=nbytes)
    # As the reader of a query, which its tasks reach by the socket.
    with ReaderHost(config=config, backend=lambda: kinesis) as host:
        pipe.send((f"unix:{host.socket_path}", host.token))
        pipe.recv()


@contextmanager
def prefilled_reader(records: int) -> Iterator[tuple[dict[str, str], int]]:
    """A reader of so many records in all: the options by which it is read, and its process' number."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_run, args=(records, other), name="bench reader")
    process.start()
    try:
        address, token = pipe.recv()
        yield {"readerEndpoint": address, "serviceToken": token}, process.pid or 0
    finally:
        pipe.send(None)
        process.join(10)
        if process.is_alive():
            process.kill()
