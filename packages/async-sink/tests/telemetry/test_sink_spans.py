"""Which requests have a span of their own, and that each is in exactly one."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, Sampler, SamplingResult

from penstock.async_sink import _spans as request_spans
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


def submits(exporter: InMemorySpanExporter) -> list[dict[str, object]]:
    return [dict(span.attributes or {}) for span in spans_of(exporter)]


def spans_of(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == "async_sink.submit"]


async def test_successful_requests_share_a_span(
    make_writer: MakeWriter, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The first of a caller has its own, the others share one that counts them; both are the caller's children."""
    with provider.get_tracer("test").start_as_current_span("caller") as caller:
        async with make_writer(tracer_provider=provider, destination="flights") as writer:
            await writer.write_many(["xy"] * 55)
            await writer.flush(end_of_input=True)
            # A flush tells what there is: the caller may end now.
            assert len(spans_of(exporter)) == 2
    first, others = submits(exporter)
    assert first == {
        "stream": "flights", "requests": 1, "entries": 10, "bytes": 20, "attempt": 1, "failed": 0, "throttled": 0,
    }  # fmt: skip
    assert others.pop("slowest_ms") == 0.0
    assert others == {
        "stream": "flights", "requests": 5, "entries": 45, "bytes": 90, "attempt": 1, "failed": 0, "throttled": 0,
    }  # fmt: skip
    for span in spans_of(exporter):
        assert span.parent is not None
        assert span.parent.span_id == caller.get_span_context().span_id
        assert span.kind is trace.SpanKind.CLIENT
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time


async def test_what_fails_or_is_slow_has_a_span_of_its_own(
    make_writer: MakeWriter,
    fake: FakeDestination,
    clock: FakeClock,
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
) -> None:
    """Also within a second of another request, with the start time of the request. Retries have one too."""
    slow = fake.hold()
    fake.script = [fake.accept, fake.accept, fake.fail(0, 1), slow]
    async with make_writer(tracer_provider=provider) as writer:
        await writer.write_many(["xy"] * 40)
        await clock.advance(0.5)
        assert writer.in_flight_requests == 1
        await clock.advance(1.0)
        fake.requests[3].answer.set()
        await settle()
    found = submits(exporter)
    assert sum(int(str(each["requests"])) for each in found) == writer.metrics.requests == 5
    assert sum(int(str(each["entries"])) for each in found) == writer.metrics.submitted == 42
    (failed,) = (span for span in spans_of(exporter) if (span.attributes or {})["failed"])
    assert dict(failed.attributes or {}).items() >= {"failed": 2, "throttled": 2, "requests": 1, "attempt": 1}.items()
    (again,) = (each for each in found if each["attempt"] == 2)
    assert again["entries"] == 2
    (late,) = (span for span in spans_of(exporter) if (span.end_time or 0) - (span.start_time or 0) > 1_400_000_000)
    assert dict(late.attributes or {}).items() >= {"requests": 1, "entries": 10, "failed": 0}.items()
    assert "slowest_ms" not in (late.attributes or {})  # it does not wait for neighbours


async def test_a_variable_gives_each_request_a_span(
    make_writer: MakeWriter, provider: TracerProvider, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PENSTOCK_SPANS_PER_REQUEST gives each request a span."""
    monkeypatch.setenv("PENSTOCK_SPANS_PER_REQUEST", "true")
    request_spans.per_request.cache_clear()
    try:
        async with make_writer(tracer_provider=provider) as writer:
            await writer.write_many(["xy"] * 60)
    finally:
        request_spans.per_request.cache_clear()
    assert [each["requests"] for each in submits(exporter)] == [1] * 6


async def test_the_sampler_is_asked_once_a_second(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """A request of an unsampled caller has no span, and still runs in the caller's trace."""
    asked = []

    class Asked(Sampler):
        def should_sample(self, *arguments: object, **keywords: object) -> SamplingResult:
            asked.append(arguments)
            return SamplingResult(Decision.DROP)

        def get_description(self) -> str:
            return "counts"

    inside = []

    def look(request: FakeRequest) -> None:
        inside.append(trace.get_current_span().get_span_context().trace_id)
        fake.accept(request)

    fake.script = [look] * 6
    outer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("test")
    with outer.start_as_current_span("caller") as caller:
        async with make_writer(tracer_provider=TracerProvider(sampler=Asked())) as writer:
            await writer.write_many(["xy"] * 50)
            await clock.advance(1.5)
            assert clock.pending(within=0.5) == 0
            await writer.write_many(["xy"] * 10)
    assert len(asked) == 2
    assert inside == [caller.get_span_context().trace_id] * 6


def test_a_forked_child_counts_although_its_parent_was_counting() -> None:
    """A thread that does not exist after the fork cannot block the child's collection."""
    code = (
        "import os\nfrom penstock.async_sink import _metrics as counting\ncounting._lock.acquire()\n"
        "if os.fork() == 0:\n    os._exit(0 if counting._lock.acquire(timeout=5) else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
