"""The case of `hatch run bench tracing`: what spans cost a record of 1 kB that is read and written.

One subscription's records go to a stream, in two processes that take turns: one exports spans over OTLP to a receiver
over a real socket (batch processor, sampler `parentbased_always_on`), the other has no SDK. The figure is records per
second of processor time of all of the process' threads, the exporter's among them; `-wall` is by the clock, of two
cores that the servers and the receiver share. Other cases export metrics every second as well, or have a span for each
request.

Each round has two new processes with the same seed of hashes: where the memory of a process happens to lie is worth
some 5 %, more than what is measured.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping

from benchmarks._harness import Case
from benchmarks.reading._frame_clients import frame_server
from benchmarks.reading._frame_server import records_in_block
from benchmarks.writing.put import success_server
from penstock.telemetry.testing import OtlpReceiver, running_receiver

_BLOCKS = 60
_RECORD_BYTES = 1_000
_TURNS = 3


class _Copier:
    """A process that copies when told, and the seconds for a record that its turns took."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.processor: list[float] = []
        self.wall: list[float] = []

    def __call__(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        rows, processor, wall = self._process.stdout.readline().split()
        if int(rows) != _BLOCKS * records_in_block(_RECORD_BYTES):
            raise RuntimeError(f"{rows} records were read")
        self.processor.append(float(processor) / int(rows))
        self.wall.append(float(wall) / int(rows))


@contextlib.contextmanager
def _copier(arguments: list[str], variables: Mapping[str, str]) -> Iterator[_Copier]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-m", "benchmarks.reading._tracing_path", *arguments]
    environment |= variables
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield _Copier(process)
        process.communicate()


def _compare(name: str, arguments: list[str], variables: Mapping[str, str], rounds: int) -> Iterator[Case]:
    figures: dict[str, dict[str, list[float]]] = {
        "": {"ours": [], "peers": []},
        "-wall": {"ours": [], "peers": []},
    }
    for number in range(rounds):
        seed = {"PYTHONHASHSEED": str(number)}
        with _copier(arguments, {**variables, **seed}) as ours, _copier(arguments, seed) as peer:
            for turn in (ours, peer, *(ours, peer, peer, ours) * _TURNS):
                turn()
        for side, copier in (("ours", ours), ("peers", peer)):
            # The first of each is the warm-up.
            figures[""][side].append(1 / statistics.median(copier.processor[1:]))
            figures["-wall"][side].append(1 / statistics.median(copier.wall[1:]))
    for suffix, sides in figures.items():
        yield Case(name=f"{name}{suffix}", peer_name="untraced", unit="records/s", **sides)


def _check(receiver: OtlpReceiver) -> None:
    if not {"copy", "efo_consumer.subscribe", "async_sink.submit"} <= receiver.span_names():
        raise RuntimeError(f"the receiver got {receiver.span_names()} only")


def run(rounds: int) -> Iterator[Case]:
    """With spans, with spans and metrics, and with a span for each request, against none of them."""
    shard_id = f"shardId-{_RECORD_BYTES:06}{_BLOCKS:06}"
    with frame_server() as source, success_server() as sink, running_receiver() as receiver:
        arguments = [source.session.endpoint_url(), source.session.ca_bundle or "", sink, shard_id]
        spans = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_TRACES_SAMPLER": "parentbased_always_on",
        }
        both = {**spans, "OTEL_METRICS_EXPORTER": "otlp", "OTEL_METRIC_EXPORT_INTERVAL": "1000"}
        each = {**spans, "PENSTOCK_SPANS_PER_REQUEST": "true"}
        cases = {"traced": spans, "traced-and-metered": both, "traced-each-request": each}
        for name, variables in cases.items():
            yield from _compare(f"{name}-over-untraced", arguments, variables, rounds)
            _check(receiver)
