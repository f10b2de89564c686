"""A receiver of OTLP over gRPC, as a collector is one, for tests of what a process exports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

__all__ = ["OtlpReceiver", "attributes_of", "running_receiver", "wait_until"]


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Attributes of a span, a point or a resource, as plain values."""
    found = {}
    for pair in pairs:
        one: KeyValue = pair
        kind = one.value.WhichOneof("value")
        found[one.key] = getattr(one.value, kind) if kind else None
    return found


class OtlpReceiver:
    """What was received, for as long as the receiver runs. All come with their resource's attributes."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token
        self._changed = threading.Condition()
        self.address = ""
        """`host:port`."""
        self.endpoint = ""
        """For `OTEL_EXPORTER_OTLP_ENDPOINT`."""
        self.spans: list[tuple[dict[str, Any], Span]] = []
        self.metrics: list[tuple[dict[str, Any], str, Metric]] = []
        """Resource, scope, and metric of each export."""
        self.logs: list[tuple[dict[str, Any], str, LogRecord]] = []
        """Resource, logger's name, and record."""
        self.refused = 0
        """Calls without the token."""
        self.traces = _Traces(self)
        self.points = _Metrics(self)
        self.records = _Logs(self)

    def take(self, context: grpc.ServicerContext, add: Callable[[], None]) -> None:
        """Check a call's token, and note what it brought."""
        metadata = {str(key): value for key, value in context.invocation_metadata()}
        with self._changed:
            if self._token is not None and metadata.get("authorization") != f"Bearer {self._token}":
                self.refused += 1
                self._changed.notify_all()
                refused = True
            else:
                add()
                self._changed.notify_all()
                refused = False
        if refused:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong")

    def wait_for(self, condition: Callable[[], bool], what: str, *, seconds: float = 30.0) -> None:
        """Wait until what was received fulfils a condition.

        Raises:
            TimeoutError: the condition was not met in time.
        """
        with self._changed:
            if not self._changed.wait_for(condition, seconds):
                names, series = sorted(self._span_names()), sorted(self._metric_names())
                raise TimeoutError(f"{what}; there are spans {names} and metrics {series}")

    def span_names(self) -> set[str]:
        """Names of all spans so far."""
        with self._changed:
            return self._span_names()

    def metric_names(self) -> set[str]:
        """Names of all metrics so far."""
        with self._changed:
            return self._metric_names()

    def log_texts(self) -> list[str]:
        """What all log records so far say."""
        with self._changed:
            return [record.body.string_value for _, _, record in self.logs]

    def _span_names(self) -> set[str]:
        return {span.name for _, span in self.spans}

    def _metric_names(self) -> set[str]:
        return {metric.name for _, _, metric in self.metrics}


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        def add() -> None:
            for one in request.resource_spans:
                resource = attributes_of(one.resource.attributes)
                self._receiver.spans += [(resource, span) for scope in one.scope_spans for span in scope.spans]

        self._receiver.take(context, add)
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(
        self, request: metrics_service_pb2.ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> metrics_service_pb2.ExportMetricsServiceResponse:
        def add() -> None:
            for one in request.resource_metrics:
                resource = attributes_of(one.resource.attributes)
                for scope in one.scope_metrics:
                    self._receiver.metrics += [(resource, scope.scope.name, metric) for metric in scope.metrics]

        self._receiver.take(context, add)
        return metrics_service_pb2.ExportMetricsServiceResponse()


class _Logs(logs_service_pb2_grpc.LogsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(
        self, request: logs_service_pb2.ExportLogsServiceRequest, context: grpc.ServicerContext
    ) -> logs_service_pb2.ExportLogsServiceResponse:
        def add() -> None:
            for one in request.resource_logs:
                resource = attributes_of(one.resource.attributes)
                for scope in one.scope_logs:
                    self._receiver.logs += [(resource, scope.scope.name, record) for record in scope.log_records]

        self._receiver.take(context, add)
        return logs_service_pb2.ExportLogsServiceResponse()


@contextmanager
def running_receiver(
    *, token: str | None = None, certificate: tuple[bytes, bytes] | None = None, address: str = "127.0.0.1:0"
) -> Iterator[OtlpReceiver]:
    """Serve on loopback between enter and exit.

    Args:
        token: the bearer token that calls must bring.
        certificate: PEM of private key and certificate chain: TLS.
        address: to serve at; by default, at a port that the system picks.
    """
    receiver = OtlpReceiver(token)
    with ThreadPoolExecutor(4, thread_name_prefix="otlp-receiver") as pool:
        # Generated code has no annotations.
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver.traces, server)  # type: ignore[no-untyped-call]
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(receiver.points, server)  # type: ignore[no-untyped-call]
        logs_service_pb2_grpc.add_LogsServiceServicer_to_server(receiver.records, server)  # type: ignore[no-untyped-call]
        host = address.rpartition(":")[0]
        if certificate is None:
            port, scheme = server.add_insecure_port(address), "http"
        else:
            port, scheme = server.add_secure_port(address, grpc.ssl_server_credentials([certificate])), "https"
        receiver.address = f"{host}:{port}"
        receiver.endpoint = f"{scheme}://{'localhost' if certificate else host}:{port}"
        server.start()
        try:
            yield receiver
        finally:
            server.stop(0).wait()


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 30.0) -> None:
    """Poll until a deadline. Raises: TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)
