import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext
from sink_fixtures import numbers

from penstock.async_sink import DropHandler, EntryFailure
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeRequest, FakeWriter, settle

MakeWriter = Callable[..., FakeWriter]


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


def parent_of(span: ReadableSpan) -> SpanContext:
    assert span.parent is not None
    return span.parent


async def test_a_span_per_request_says_what_it_carried(
    make_writer: MakeWriter,
    fake: FakeDestination,
    clock: FakeClock,
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
) -> None:
    """Stream, entries, bytes and attempt, and what failed."""
    fake.script = [fake.fail(2)]
    async with make_writer(tracer_provider=provider, destination="flights") as writer:
        await writer.write_many(["xy"] * 10)
        await clock.advance(0.05)
    first, second = exporter.get_finished_spans()
    assert first.name == second.name == "async_sink.submit"
    assert dict(first.attributes or {}) == {
        "stream": "flights", "requests": 1, "entries": 10, "bytes": 20, "attempt": 1, "failed": 1, "throttled": 1,
    }  # fmt: skip
    assert dict(second.attributes or {}) == {
        "stream": "flights", "requests": 1, "entries": 1, "bytes": 2, "attempt": 2, "failed": 0, "throttled": 0,
    }  # fmt: skip


async def test_other_callers_of_a_batch_are_linked(
    make_writer: MakeWriter, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """One parent, and a link to each further caller."""
    tracer = provider.get_tracer("test")
    callers = []
    async with make_writer(tracer_provider=provider) as writer:
        for letter in "abc":
            with tracer.start_as_current_span(letter) as caller:
                callers.append(caller.get_span_context().span_id)
                await writer.write_many([letter] * 2)
    (submit,) = [span for span in exporter.get_finished_spans() if span.name == "async_sink.submit"]
    assert parent_of(submit).span_id == callers[0]
    assert [link.context.span_id for link in submit.links] == callers[1:]


async def test_the_request_runs_inside_of_its_span(
    make_writer: MakeWriter, fake: FakeDestination, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Spans of the destination's client are children of the submission."""
    inside = []

    def look(request: object) -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)
        fake.accept(fake.requests[-1])

    fake.script = [look]
    async with make_writer(tracer_provider=provider) as writer:
        await writer.write("a")
    (submit,) = exporter.get_finished_spans()
    assert submit.context is not None
    assert inside == [submit.context.span_id]


async def test_what_was_sent_and_what_was_acknowledged_are_exported(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """FLIP-171's counters count a record again each time that it is sent; beside them it is counted once."""
    reader = InMemoryMetricReader()
    fake.script = [fake.fail(0, 1), fake.fail(0, throttled=False)]
    async with make_writer(meter_provider=MeterProvider([reader])) as writer:
        await writer.write_many(["xx"] * 10)
        await clock.advance(0.05)
        await clock.advance(0.1)
    data = reader.get_metrics_data()
    assert data is not None
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    sums = {name: sum(point.value for point in numbers(found[name])) for name in found if name.startswith("num")}
    assert (sums["numrecordsout"], sums["numbytesout"], sums["numrecordsouterrors"]) == (13, 26, 3)
    assert (sums["numrecordsacknowledged"], sums["numbytesacknowledged"]) == (10, 20)


METRICS = {
    *("numrecordsout", "numbytesout", "numrecordsacknowledged", "numbytesacknowledged", "numrecordsouterrors"),
    *("numrecordsthrottled", "numrecordsretried", "numrecordsexpired", "numrecordsdeadlettered", "numrequests"),
    *("blockedtime", "recordattempts", "batchfillratio", "requestroundtrip", "currentsendtime", "bufferedrecords"),
    *("bufferedbytes", "bufferage", "heldrecordtime", "inflightrequests", "inflightmessages", "ratelimit"),
}


async def test_every_metric_is_exported(make_writer: MakeWriter, clock: FakeClock) -> None:
    """A throttle, an expiry, a dead letter and a wait have their counters, with reason or shard."""
    reader, fake = InMemoryMetricReader(), FakeDestination()
    provider = MeterProvider([reader])

    def throttle(request: FakeRequest) -> None:
        request.handler.retry_failures([EntryFailure(0, "Slow")], lanes=["shard-7", *[None] * 9])

    fake.script = [throttle, fake.fail(throttled=False), fake.hold(), fake.hold()]
    options = {"max_in_flight_requests": 1, "max_buffered_requests": 12, "time_to_live": timedelta(seconds=1)}
    writer = make_writer(
        fake=fake, meter_provider=provider, destination="flights", terminal=DropHandler(), random=lambda: 0.0, **options
    )
    await writer.__aenter__()
    await writer.write_many(["xy"] * 10)
    await settle()
    assert fake.batches[1] == ["xy"]
    await writer.write_many(["xy"] * 12)
    waiting = asyncio.create_task(writer.write("z"))
    await clock.advance(0.5)
    fake.requests[2].answer.set()
    await clock.advance(1.5)
    for request in fake.requests[3:]:
        request.answer.set()
    await settle()
    await waiting
    data = reader.get_metrics_data()
    assert data is not None
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert set(found) == METRICS

    def total(name: str, **attributes: str) -> float:
        wanted = {"stream": "flights", **attributes}.items()
        points = [point for point in found[name].data.data_points if wanted <= dict(point.attributes or {}).items()]
        return sum(point.value if hasattr(point, "value") else point.count for point in points)

    metrics = writer.metrics
    assert total("numrecordsthrottled", shard="shard-7") == metrics.throttled_by_lane["shard-7"] == 1
    assert total("numrecordsretried") == metrics.retried > 1
    assert total("numrecordsexpired") == metrics.expired >= 1
    assert total("numrecordsdeadlettered") == metrics.dead_lettered == metrics.expired
    assert total("numrequests", reason="size") >= 1
    assert total("numrequests", reason="retry") >= 1
    assert total("requestroundtrip") == total("batchfillratio") == metrics.requests - writer.in_flight_requests
    assert total("recordattempts") >= 2
    assert total("blockedtime", reason="buffer_records") == pytest.approx(metrics.blocked_seconds["buffer_records"])
    assert metrics.blocked_seconds["buffer_records"] >= 0.5
    assert metrics.blocked_seconds["requests_in_flight"] >= 0.5
    await writer.close()
    provider.shutdown()
