"""The cases of `hatch run bench executor-readers`: what the driver's source process takes where executors read.

The peer is the same query with a reader of its own in that process: the same stream, by enhanced fan-out over TLS, the
same micro-batches, buffers and sink. The aim is a tenth. What readers take is in the table, among the workers.
"""

import statistics
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table

from benchmarks import _jobs as jobs
from benchmarks._harness import Case
from benchmarks.spark.source import Rate, fill, measure
from penstock.emulator.testing import EmulatorProcess, start_emulator_process
from penstock.spark_plugin import start_readers

_STREAM = "executors"
_BATCH_RECORDS = 32_000
_BATCHES = 8
_WARM_UP_BATCHES = 1
_BUFFERS = {"bufferBytes": "64m"}
"""Of both: two micro-batches, so that most records are decoded after the warm-up."""
_OF_READERS = ("region", "endpointUrl", "caBundle", "awsAccessKeyId", "awsSecretAccessKey")


def _query(emulator: EmulatorProcess, **options: str) -> dict[str, str]:
    return jobs.fan_out_options(emulator, _STREAM, maxRecordsPerBatch=str(_BATCH_RECORDS), maxPartitions="1", **options)


def _measure(options: dict[str, str]) -> Rate:
    frame = jobs.session().readStream.format("kinesis").options(**options).load()
    return measure(frame, _BATCHES * _BATCH_RECORDS, _WARM_UP_BATCHES)


def _alone(emulator: EmulatorProcess) -> Rate:
    return _measure(_query(emulator, **_BUFFERS))


def _on_executors(emulator: EmulatorProcess) -> Rate:
    query = _query(emulator)
    given = {name: query[name] for name in _OF_READERS if name in query} | _BUFFERS
    with start_readers(jobs.session(), count=1, options=given):
        return _measure(query)


def run(rounds: int) -> Iterator[Case]:
    """Its own reader and one on the executor, in turn."""
    with start_emulator_process("--no-enforce-limits") as emulator:
        fill(emulator, _BATCHES * _BATCH_RECORDS, _STREAM)
        sides: dict[str, Callable[[], Rate]] = {
            "driver": lambda: _alone(emulator),
            "executors": lambda: _on_executors(emulator),
        }
        for side in sides.values():
            side()
        found: dict[str, list[Rate]] = {name: [] for name in sides}
        for number in range(rounds):
            for name in sides if number % 2 == 0 else reversed(sides):
                found[name].append(sides[name]())
    _print_table(found)
    for case, part in (("source-processor-time", "source"), ("all-processor-time", "")):
        ours, peers = (
            [one.millis[part] if part else sum(one.millis.values()) for one in found[name]]
            for name in ("executors", "driver")
        )
        yield Case(name=case, peer_name="reader-on-the-driver", unit="ms/MB", ours=ours, peers=peers)


def _print_table(found: dict[str, list[Rate]]) -> None:
    parts = sorted({part for rates in found.values() for rate in rates for part in rate.millis})
    table = Table(title="milliseconds of the processor for a MB, by part")
    for column in ("readers", "MB/s", *parts):
        table.add_column(column, justify="left" if column == "readers" else "right")
    for name, rates in found.items():
        millis = [statistics.median(rate.millis[part] for rate in rates) for part in parts]
        clock = statistics.median(rate.by_clock for rate in rates)
        table.add_row(name, f"{clock:.0f}", *(f"{one:.2f}" for one in millis))
    Console().print(table)
