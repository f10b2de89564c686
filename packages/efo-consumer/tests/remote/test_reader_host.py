"""The reader beside blocking code: the host, its token, tasks that read, and several endpoints."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.efo_consumer import (
    DataLossError,
    EfoConsumerConfigError,
    EfoConsumerError,
    ReaderHost,
    ReaderUnavailableError,
    RemoteShardReader,
    SessionNotFoundError,
    ShardEvent,
    ShardPosition,
    ShardRange,
    StaleEpochError,
    StreamPositions,
    connect_reader,
    ranges_between,
    read_ranges,
)
from penstock.efo_consumer._remote import fetch
from penstock.efo_consumer.testing import FakeKinesis
from penstock.rpc import ClientSecurity, RpcOptionError


class Traced(FakeKinesis):
    """Remembers the spans below which shards are followed."""

    def __init__(self) -> None:
        super().__init__()
        self.span_contexts: list[trace.SpanContext] = []

    def follow(self, stream: str, shard_id: str, position: ShardPosition) -> AsyncGenerator[ShardEvent, None]:
        self.span_contexts.append(trace.get_current_span().get_span_context())
        return super().follow(stream, shard_id, position)


class Hosted:
    """A host over a stream of two shards that holds 30 records."""

    def __init__(self) -> None:
        self.kinesis = Traced()
        self.shards = self.kinesis.create_stream("s", 2)
        self.numbers = sorted(number for shard in self.shards for number in self.kinesis.put("s", shard, 15))
        self.start = self.kinesis.trim_horizon("s")
        self.host = ReaderHost(backend=lambda: self.kinesis)

    def plan(self) -> tuple[list[ShardRange], StreamPositions]:
        """Open a session, and give the ranges of all records with their end."""
        self.host.reader.open("q", self.start)
        position = self.start
        while sum(stats.records for stats in self.host.reader.stats()) < len(self.numbers):
            self.host.reader.positions(position, wait_seconds=0.05)
        end = self.host.reader.positions(position, wait_seconds=5).positions
        return ranges_between(self.start, end), end

    def read(self, ranges: list[ShardRange], security: ClientSecurity | None = None) -> list[int]:
        batches = list(read_ranges(self.host.address, security or self.host.security, "q", ranges))
        return sorted(int(number) for batch in batches for number in batch.column("sequenceNumber").to_pylist())


@pytest.fixture
def hosted() -> Iterator[Hosted]:
    made = Hosted()
    with made.host:
        yield made


def test_the_driver_plans_and_its_tasks_read(hosted: Hosted) -> None:
    """Positions come from the host's façade, records over its socket, and a commit drops them."""
    ranges, end = hosted.plan()
    assert hosted.read(ranges) == hosted.numbers
    hosted.host.reader.commit(end)
    assert sum(stats.buffered_records for stats in hosted.host.reader.stats()) == 0
    assert hosted.read(ranges) == hosted.numbers
    assert hosted.kinesis.polls > 0


def test_only_the_holder_of_the_token_may_call(hosted: Hosted) -> None:
    """Without the token, or with another one, calls are refused; two hosts never share one."""
    for security in (ClientSecurity(), ClientSecurity(token="guessed" * 5)):
        with pytest.raises(ReaderUnavailableError, match="UNAUTHENTICATED"):
            hosted.read([], security)
    assert Hosted().host.token != hosted.host.token
    assert hosted.host.token not in repr(hosted.host.security)


def test_an_error_of_the_reader_crosses_to_the_task_with_its_fields(hosted: Hosted) -> None:
    """A task sees the same error as the driver would."""
    shard = hosted.shards[0]
    numbers = hosted.kinesis.shards["s", shard].sequence_numbers
    hosted.kinesis.trim("s", shard, numbers[-1])
    lost = ShardRange("s", shard, ShardPosition.after(str(numbers[0])), ShardPosition.after(str(numbers[1])))
    with pytest.raises(DataLossError) as raised:
        hosted.read([lost])
    assert (raised.value.shard_id, raised.value.upto) == (shard, str(lost.upto))


def test_a_task_that_stops_early_ends_its_call(hosted: Hosted) -> None:
    """Closing the generator is enough, and the channel continues to work."""
    ranges, _ = hosted.plan()
    reading = read_ranges(hosted.host.address, hosted.host.security, "q", ranges, max_batch_bytes=1)
    assert next(reading).num_rows == 1
    reading.close()  # type: ignore[attr-defined]  # it is a generator
    assert hosted.read(ranges) == hosted.numbers


def test_channels_are_kept_per_process_and_endpoint(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second task of a worker uses the first one's channel; a forked child makes its own."""
    security = hosted.host.security
    first = fetch._channel(hosted.host.address, security)
    assert fetch._channel(hosted.host.address, security) is first
    assert fetch._channel("127.0.0.1:1", security) is not first
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert fetch._channel(hosted.host.address, security) is not first


def test_a_process_that_forks_reads_in_its_children(hosted: Hosted) -> None:
    """Spark's daemon imports the module and forks its workers: each of them can read."""
    ranges, _ = hosted.plan()
    script = textwrap.dedent("""
        import json, os, sys
        from penstock.efo_consumer import ShardPosition, ShardRange, read_ranges
        from penstock.rpc import ClientSecurity
        address, token, ranges = json.load(sys.stdin)
        ranges = [ShardRange(s, i, ShardPosition.from_json(a), ShardPosition.from_json(u)) for s, i, a, u in ranges]
        for _ in range(2):
            child = os.fork()
            if child == 0:
                rows = sum(b.num_rows for b in read_ranges(address, ClientSecurity(token=token), "q", ranges))
                os._exit(rows)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 30
    """)
    plain = [(r.stream_name, r.shard_id, r.after.to_json(), r.upto.to_json()) for r in ranges]
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps([hosted.host.address, hosted.host.token, plain]),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_closing_ends_the_thread_and_the_socket() -> None:
    """Nothing is left behind; closing twice, or before the start, does nothing."""
    hosted = Hosted()
    hosted.host.close()
    with pytest.raises(RuntimeError, match="start"):
        _ = hosted.host.reader
    hosted.host.start()
    hosted.host.start()
    reader, threads = hosted.host.reader, threading.active_count()
    reader.open("q", hosted.start)
    hosted.host.close()
    hosted.host.close()
    reader.close()
    assert threading.active_count() < threads
    assert hosted.kinesis.closed
    with pytest.raises(ReaderUnavailableError):
        hosted.read([])
    with pytest.raises(SessionNotFoundError):
        reader.stats()


def test_a_connected_reader_is_used_as_the_one_in_this_process(hosted: Hosted) -> None:
    """The same calls over gRPC; the consumers may come as plain tuples; opening fences the host's own session."""
    hosted.plan()
    remote = connect_reader([hosted.host.address], hosted.host.security)
    arn = "arn:aws:kinesis:us-east-1:000000000001:stream/s/consumer/c:1"
    epoch = remote.open("q", hosted.start, consumers=[("s", arn, 3)])
    assert remote.endpoint == hosted.host.address
    snapshot = remote.positions(hosted.start, max_records=7, wait_seconds=5)
    assert snapshot.records == 7
    remote.commit(snapshot.positions)
    with pytest.raises(StaleEpochError) as raised:
        hosted.host.reader.positions(hosted.start)
    assert raised.value.current_epoch == epoch
    remote.close()
    with pytest.raises(SessionNotFoundError):
        hosted.host.reader.stats()


def test_an_endpoint_that_nobody_serves_is_told() -> None:
    """The error names the endpoint; a token is not shown to other machines without TLS."""
    reader = connect_reader("127.0.0.1:9", None)
    with pytest.raises(ReaderUnavailableError, match=r"127\.0\.0\.1:9") as raised:
        reader.open("q", StreamPositions({"s": {"shard": ShardPosition.trim_horizon()}}))
    assert raised.value.endpoint == "127.0.0.1:9"
    reader.close()
    with pytest.raises(EfoConsumerConfigError, match="readerEndpoint"):
        connect_reader([])
    exposed = connect_reader("reader.example:1", ClientSecurity(token="t" * 32))
    with pytest.raises(RpcOptionError, match="plain text"):
        exposed.open("q", StreamPositions({"s": {"shard": ShardPosition.trim_horizon()}}))
    exposed.close()


def test_a_read_is_a_span_below_the_task_that_asked(hosted: Hosted) -> None:
    """The trace context crosses gRPC: the reader's span belongs to the caller's trace."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    spans = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    ranges, _ = hosted.plan()
    with trace.get_tracer("test").start_as_current_span("task") as task:
        assert hosted.read(ranges) == hosted.numbers
    hosted.host.close()
    by_id = {span.context.span_id: span for span in spans.get_finished_spans() if span.context is not None}
    (read,) = [span for span in by_id.values() if span.name == "efo_consumer.read_range"]
    assert read.attributes is not None
    assert (read.attributes["penstock.records"], read.attributes["penstock.replays"]) == (30, 0)
    above, names = read.parent, []
    while above is not None and above.span_id in by_id:
        names.append(by_id[above.span_id].name)
        above = by_id[above.span_id].parent
    assert names[-1] == "task"
    assert read.context is not None
    assert read.context.trace_id == task.get_span_context().trace_id


@pytest.mark.parametrize("home", ["local", "remote"])
def test_shards_are_followed_below_the_span_that_opened_the_session(home: str, hosted: Hosted) -> None:
    """Subscriptions belong to the trace of the query that asked for them, also for children and over gRPC."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())
    remote = connect_reader(hosted.host.address, hosted.host.security)
    reader = hosted.host.reader if home == "local" else remote
    hosted.kinesis.reshard("s", [hosted.shards[0]], 2)
    with trace.get_tracer("test").start_as_current_span("query") as query:
        reader.open("q", hosted.start)
        position = hosted.start
        while len(hosted.kinesis.span_contexts) < 4:
            position = reader.positions(position, wait_seconds=5).positions
    traces = {context.trace_id for context in hosted.kinesis.span_contexts}
    assert traces == {query.get_span_context().trace_id}
    remote.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_that_closes_leaves_the_parents_session_alone(hosted: Hosted) -> None:
    """The child has neither the thread nor the session: closing does nothing there, and the parent reads on."""
    hosted.plan()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            hosted.host.reader.close()
            hosted.host.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sum(stats.records for stats in hosted.host.reader.stats()) == len(hosted.numbers)


@pytest.mark.parametrize(
    ("advertised", "shown"), [("::1", "[::1]"), ("[::1]", "[::1]"), ("10.0.0.7", "10.0.0.7"), ("driver", "driver")]
)
def test_an_address_of_ipv6_is_told_from_its_port(advertised: str, shown: str) -> None:
    """By brackets, whether they were given or not: without them clients could not connect."""
    with ReaderHost(backend=FakeKinesis, advertised_host=advertised) as host:
        name, _, port = host.address.rpartition(":")
        assert name == shown
        assert int(port) > 0


async def test_who_looks_lists_the_sessions_and_reads_nothing(hosted: Hosted) -> None:
    """The view token is good for that alone, and is in no repr."""
    ranges, _ = hosted.plan()
    host = hosted.host
    view = ClientSecurity(token=host.view_token)
    remote = RemoteShardReader(host.address, view)
    try:
        (session,) = await remote.sessions(with_shards=True)
        assert (session.session_id, session.shard_count) == ("q", 2)
        with pytest.raises(EfoConsumerError, match="bearer token is missing or wrong"):
            await remote.stats("q")
    finally:
        await remote.aclose()
    with pytest.raises(EfoConsumerError, match="bearer token is missing or wrong"):
        await asyncio.to_thread(hosted.read, ranges, view)
    assert host.view_token not in repr(host._settings)
