"""`write_batches` from threads and processes, interrupted, and forked."""

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from penstock.async_sink import AsyncSinkConfig, DropHandler, KinesisStreamsSink, write_batches
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import RunningEmulator, running_emulator


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False, enforce_limits=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        yield emulator


def sink(emulator: RunningEmulator, **options: Any) -> KinesisStreamsSink:
    return KinesisStreamsSink(emulator_options(emulator.endpoint_url), "flights", **options)


def rows(name: str, count: int = 100) -> pa.RecordBatch:
    return pa.record_batch({"data": [f"{name} {n}".encode() for n in range(count)], "partitionKey": ["k"] * count})


def stored(emulator: RunningEmulator) -> list[str]:
    shard = emulator.kinesis.streams["flights"].shards[0]
    return sorted(bytes(record.data).decode() for record in shard.records)


def sink_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "async-sink"]


def test_threads_share_a_sink(emulator: RunningEmulator) -> None:
    """Each call has a writer, a loop and connections of its own; all of them are gone afterwards."""
    shared = sink(emulator)
    with ThreadPoolExecutor(6) as threads:
        written = list(threads.map(lambda n: write_batches(shared, [rows(f"thread {n}")] * 3).records, range(6)))
    assert written == [300] * 6
    assert stored(emulator) == sorted(f"thread {n} {row}" for n in range(6) for row in range(100) for _ in range(3))
    assert sink_threads() == []


def test_a_forked_process_writes_with_the_sink_of_its_parent(emulator: RunningEmulator) -> None:
    """As Spark's workers are forked from a daemon that may have written before."""
    shared = sink(emulator)
    write_batches(shared, [rows("parent")])
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def write(name: str) -> None:
        results.put(write_batches(shared, [rows(name)]).records)

    children = [context.Process(target=write, args=(f"child {n}",)) for n in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
    assert [child.exitcode for child in children] == [0, 0]
    assert [results.get() for _ in children] == [100, 100]
    names = ("parent", "child 0", "child 1")
    assert stored(emulator) == sorted(f"{name} {row}" for name in names for row in range(100))


def test_ctrl_c_ends_a_write_that_waits(emulator: RunningEmulator) -> None:
    """Though the destination throttles for ever: at once, without a thread left behind."""
    throttles = emulator.faults.add("throttle", operation="PutRecords")
    main, interrupted = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        while emulator.faults.list()[0]["hits"] < 2 and not interrupted.wait(0.01):
            pass
        signal.pthread_kill(main, signal.SIGINT)

    pressing = threading.Thread(target=interrupt)
    # A shell that starts something in the background lets it ignore the interrupt.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    pressing.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            write_batches(sink(emulator), [rows("never", 10_000)] * 5)
    finally:
        interrupted.set()
        pressing.join()
        signal.signal(signal.SIGINT, before)
    assert throttles
    assert sink_threads() == []


def test_what_a_handler_took_is_counted_apart(emulator: RunningEmulator) -> None:
    """The summary says how many records were accepted, and how many a handler has taken."""
    emulator.faults.add("fail_records", indices=(0,), code="InternalFailure")
    config = AsyncSinkConfig(max_attempts=2, retry_backoff_base=timedelta(0))
    summary = write_batches(sink(emulator, config=config, terminal=DropHandler), [rows("some", 10)])
    assert (summary.records, summary.dead_letters) == (9, 1)
    assert len(stored(emulator)) == 9
