"""Traces of what a gateway writes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.async_sink import (
    SERVICE_NAME,
    AsyncSinkBase,
    AsyncSinkConfig,
    KinesisRequestEntry,
    RemoteSink,
    SharedDestinations,
    SinkGatewayServicer,
)
from penstock.async_sink.testing import FakeDestination, FakeWriter
from penstock.rpc import GrpcServer, ServerSettings

CONFIG = AsyncSinkConfig(max_time_in_buffer=timedelta(milliseconds=5))


class KinesisLikeWriter(FakeWriter):
    def get_size_in_bytes(self, entry: KinesisRequestEntry) -> int:
        return len(entry.data) + len(entry.partition_key)


class FakeSink(AsyncSinkBase[Any, Any]):
    def create_writer(self) -> Any:
        return KinesisLikeWriter(FakeDestination(), CONFIG)

    def restore_writer(self, states: Any) -> Any:
        raise NotImplementedError


@asynccontextmanager
async def running_gateway() -> AsyncIterator[str]:
    destinations = SharedDestinations(lambda _: FakeSink())
    servicer = SinkGatewayServicer(destinations)
    server = GrpcServer(ServerSettings(drain_seconds=0.2), register=[servicer.add_to], service_names=[SERVICE_NAME])
    async with server:
        yield server.address
    await destinations.close(1.0)


async def test_each_clients_trace_holds_what_is_written_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the trace of the client for which the destination was opened."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name, *_, **__: provider.get_tracer(name))
    callers = []
    async with running_gateway() as address:
        for _ in range(2):
            with provider.get_tracer("test").start_as_current_span("caller") as caller:
                callers.append(caller.get_span_context().trace_id)
                async with RemoteSink(address, destination="flights", config=CONFIG).create_writer() as writer:
                    await writer.write(KinesisRequestEntry(b"1", "k"))
    submits = [span for span in exporter.get_finished_spans() if span.name == "async_sink.submit"]
    found = [span.context.trace_id for span in submits if span.context is not None]
    assert sorted(found) == sorted(callers * 2), "one of the client and one of the gateway in each trace"
    provider.shutdown()
