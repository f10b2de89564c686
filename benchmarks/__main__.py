"""Measure Penstock against its peers: `hatch run bench NAME`.

Prints a table for people, then one line a case (`bench NAME CASE ratio=X against=PEER`, the median of interleaved
rounds; with an aim also that it is met or missed), then everything as JSON.
"""

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from benchmarks._aims import AIMS, Aim
from benchmarks._harness import ROUNDS, Benchmark, Case

# By name: the module, and what it shows.
BENCHMARKS: Mapping[str, tuple[str, str]] = {
    "cogroup": ("stages.cogroup", "two bounded inputs grouped together at their end, against as streams"),
    "consume": ("reading.consume", "a whole client over HTTP/2 and HTTP/1.1, against boto3 and aiobotocore"),
    "compile": ("services.compile", "job graphs of 10 to 100,000 operators to stages, against a tenth of the size"),
    "decode": ("reading.decode_cases", "event-stream bytes to rows, against botocore, and as a share of the floor"),
    "emulator": ("services.emulator", "puts, gets and subscriptions of the embedded Kinesis, against moto's server"),
    "fleet": ("reading.fleet", "four reader processes with 2,000 shards: one is killed, and one comes"),
    "fetch": ("reading.fetch", "ranges over gRPC, against a bare stream of the same bytes"),
    "latency": ("reading.latency", "put to rows at an idle stream and on busy shards, against polling"),
    "gateway": ("services.gateway", "records through a sink gateway, against a writer of one's own"),
    "registry": ("services.registry", "leases and heartbeats on SQLite, against one transaction each"),
    "restart": ("spark.restart", "a driver killed at full load to the next one's first new row, against rows by rate"),
    "resume": ("stages.resume", "from a restart to the first live row, with and without committed stages"),
    "scale": ("reading.scale", "a micro-batch of 8 to 8,000 shards in the driver's source, and its offset"),
    "shards": ("reading.shards", "one reader process over 1 to 1,000 shards"),
    "slots": ("stages.slots", "slot-seconds and state of a job, all deployed at once against staged"),
    "spark-sink": ("spark.sink", "a DataFrame written from Spark, against boto3 in foreachPartition"),
    "spark-source": ("spark.source", "MB/s into a sink that does nothing, against ready Arrow batches from memory"),
    "sorted": ("stages.sorted", "rows sorted for an operator by their key, against sorting in its function"),
    "start": ("spark.start", "start() to the first row in a fresh session, against ready rows, and runs of seconds"),
    "stage": ("stages.stage", "a stream joined with an aggregate of 20 M rows, as it is against staged"),
    "hot-shard": ("writing.hot_shard", "the rate of the other shards when one gets most of the records"),
    "put": ("writing.put", "PutRecords of 500 records, against boto3 and async-kinesis"),
    "recover": ("writing.recover", "seconds until a writer is back after a stream's outage"),
    "simulation": ("writing.simulation", "recover and hot-shard over real sockets, against simulated time"),
    "sink-overhead": ("writing.sink_overhead", "what a writer costs a record, to a destination that does nothing"),
    "executor-readers": (
        "spark.executors",
        "processor of the driver's source process with readers on executors, against its own reader",
    ),
    "spark-idle": ("spark.idle", "processor of a query on 64 idle shards, against a source without rows"),
    "spark-latency": ("spark.latency", "put to foreachBatch, against a source that invents its rows, and by polling"),
    "spark-scale": ("spark.scale", "a query on 8 to 8,000 shards: micro-batches, first row, calls, a reshard of all"),
    "throttle": (
        "writing.throttle",
        "goodput and throttles over a stream's limit, against AIMD x0.5 and async-kinesis",
    ),
    "tracing": ("reading.tracing", "records read and written with spans exported over OTLP, against without"),
}

_FEWER_ROUNDS: Mapping[str, int] = {
    "cogroup": 1,
    "executor-readers": 3,
    "fleet": 1,
    "restart": 3,
    "spark-idle": 1,
    "spark-latency": 3,
    "spark-scale": 1,
    "spark-source": 3,
    "start": 3,
}
"""Of benchmarks whose rounds take minutes."""


def _aim(name: str, case: Case) -> Aim | None:
    return AIMS.get(name, {}).get(case.name)


def _judged(aim: Aim | None, case: Case) -> str:
    return "" if aim is None else f"{aim} {'met' if aim.is_met(case.ratio) else 'missed'}"


def print_table(name: str, cases: list[Case], console: Console) -> None:
    """Show medians, the ratio of each case, and what it should be."""
    table = Table(title=f"bench {name}")
    for column in ("case", "penstock", "peer", "", "ratio", "aim"):
        table.add_column(column, justify="left" if column in ("case", "") else "right")
    for case in cases:
        ours, peers = statistics.median(case.ours), statistics.median(case.peers)
        table.add_row(
            case.name,
            f"{ours:,.4g} {case.unit}",
            f"{peers:,.4g} {case.unit}",
            case.peer_name,
            f"{case.ratio:.3g}",
            _judged(_aim(name, case), case),
        )
    console.print(table)


def main() -> None:
    """Run one benchmark."""
    names = "\n".join(f"  {name:10} {text}" for name, (_, text) in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, epilog=f"benchmarks:\n{names}", formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name", choices=sorted(BENCHMARKS))
    fewer = ", ".join(f"{name} {rounds}" for name, rounds in _FEWER_ROUNDS.items())
    parser.add_argument("--rounds", type=int, help=f"interleaved rounds; default: {ROUNDS}, {fewer}")
    arguments = parser.parse_args()
    module, _ = BENCHMARKS[arguments.name]
    # Only now: each has peers of its own to import.
    run: Benchmark = importlib.import_module(f"benchmarks.{module}").run
    cases = list(run(arguments.rounds or _FEWER_ROUNDS.get(arguments.name, ROUNDS)))
    print_table(arguments.name, cases, Console())
    for case in cases:
        aim = _aim(arguments.name, case)
        print(case.line(arguments.name) + (f" aim{_judged(aim, case)}" if aim else ""))
    for missing in AIMS.get(arguments.name, {}).keys() - {case.name for case in cases}:
        print(f"bench {arguments.name}: {missing}, which has an aim, was not measured", file=sys.stderr)
    found = [
        {**asdict(case), "ratio": case.ratio, "aim": str(_aim(arguments.name, case) or "") or None} for case in cases
    ]
    print(json.dumps({"benchmark": arguments.name, "cases": found}))


if __name__ == "__main__":
    main()
