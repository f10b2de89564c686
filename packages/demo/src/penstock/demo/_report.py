"""What the run did: the result compared with what it must hold, and the report."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from penstock.demo._meter import BatchCount, latency_percentile


def read_stream(client: Any, stream_name: str) -> Iterator[bytes]:
    """The data of every record of a stream, shard after shard, oldest first, up to the tip of this moment."""
    for page in client.get_paginator("list_shards").paginate(StreamName=stream_name):
        for shard in page["Shards"]:
            yield from _read_shard(client, stream_name, shard["ShardId"])


def _read_shard(client: Any, stream_name: str, shard_id: str) -> Iterator[bytes]:
    answer = client.get_shard_iterator(StreamName=stream_name, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON")
    iterator = answer["ShardIterator"]
    while iterator:
        answer = client.get_records(ShardIterator=iterator, Limit=10_000)
        for record in answer["Records"]:
            yield record["Data"]
        if answer.get("MillisBehindLatest", 0) == 0 and not answer["Records"]:
            return
        iterator = answer.get("NextShardIterator")


@dataclass(frozen=True)
class Comparison:
    """How what is there differs from what should be there. Counts of flights, except `out`."""

    out: int
    """Records in the stream."""
    expected: int
    missing: int
    duplicated: int
    """Records beyond the first of their flight."""
    unexpected: int
    wrong: int
    """Flights whose values differ."""

    @property
    def is_complete(self) -> bool:
        """Whether everything expected is there and right. Duplicates are allowed: delivery is at least once."""
        return self.missing == self.unexpected == self.wrong == 0


def _same(actual: Any, expected: Any) -> bool:
    if expected is None or (isinstance(expected, float) and math.isnan(expected)):
        return actual is None
    if isinstance(expected, float):
        return actual is not None and math.isclose(float(actual), expected, rel_tol=1e-9, abs_tol=1e-9)
    return bool(actual == expected)


def compare(records: Iterator[bytes], expected: pd.DataFrame) -> Comparison:
    """Compare records, JSON with an `id`, with a table indexed by id. Columns that a record lacks are null."""
    wanted: Mapping[int, dict[str, Any]] = expected.to_dict(orient="index")  # type: ignore[assignment]  # ids are integers
    seen: Counter[int] = Counter()
    wrong: set[int] = set()
    for data in records:
        row = json.loads(data)
        seen[row["id"]] += 1
        values = wanted.get(row["id"])
        if values is not None and not all(_same(row.get(name), value) for name, value in values.items()):
            wrong.add(row["id"])
    return Comparison(
        out=seen.total(),
        expected=len(wanted),
        missing=len(wanted.keys() - seen.keys()),
        duplicated=seen.total() - len(seen),
        unexpected=len(seen.keys() - wanted.keys()),
        wrong=len(wrong),
    )


@dataclass(frozen=True)
class StageTime:
    """A stage and how it went."""

    name: str
    state: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the demo found."""

    accepted: int
    """Rows that Kinesis accepted from the producer."""
    read: int
    """Rows that the source gave to micro-batches, each batch counted once."""
    comparison: Comparison
    counts: list[BatchCount] = field(repr=False)
    stages: list[StageTime]
    split_shard: str | None
    throttled: int
    driver_starts: int
    trace_id: str
    spans: int
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether nothing is missing or wrong, and nothing was read twice."""
        return self.comparison.is_complete and self.read == self.accepted

    @property
    def latencies(self) -> Counter[int]:
        """Records per latency bucket, over all batches."""
        return sum((count.latencies for count in self.counts), Counter())

    @property
    def rows_per_second(self) -> float:
        """Over the time between the first and the last micro-batch."""
        if len(self.counts) < 2:
            return 0.0
        span = self.counts[-1].ended - self.counts[0].ended
        return (self.read - self.counts[0].rows) / span if span > 0 else 0.0

    def lines(self) -> list[tuple[str, str]]:
        """The rows of the table."""
        comparison = self.comparison
        twice = self.read - self.accepted
        p50, p99 = (latency_percentile(self.latencies, share) for share in (0.5, 0.99))
        lines = [
            ("rows in (accepted by Kinesis)", f"{self.accepted:,}"),
            ("rows read (by micro-batches)", f"{self.read:,}"),
            ("rows read twice", f"{twice:,}"),
            ("rows out (delays)", f"{comparison.out:,}"),
            ("expected", f"{comparison.expected:,}"),
            ("missing", f"{comparison.missing:,}"),
            ("duplicated", f"{comparison.duplicated:,}"),
            ("wrong or unexpected", f"{comparison.wrong + comparison.unexpected:,}"),
            ("micro-batches", f"{len(self.counts):,}"),
            ("records per second", f"{self.rows_per_second:,.0f}"),
            ("latency, put to row, p50", f"{p50:,.0f} ms"),
            ("latency, put to row, p99", f"{p99:,.0f} ms"),
            ("puts throttled and retried", f"{self.throttled:,}"),
            ("shard split under load", self.split_shard or "none: too few rows"),
            ("starts of the Spark driver", f"{self.driver_starts}"),
        ]
        lines += [(f"stage {stage.name}", f"{stage.state}, {stage.seconds:.1f} s") for stage in self.stages]
        lines += [("trace id", self.trace_id), ("spans", f"{self.spans:,}"), ("seconds", f"{self.seconds:.0f}")]
        return lines

    def print(self, console: Console) -> None:
        """Show the table."""
        table = Table(
            show_header=False, title="Penstock demo: complete" if self.is_good else "Penstock demo: NOT complete"
        )
        table.add_column(no_wrap=True)
        table.add_column(justify="right", overflow="fold")
        for name, value in self.lines():
            table.add_row(name, value)
        console.print(table)

    def write(self, file: Path) -> None:
        """Everything as JSON."""
        apart = ("comparison", "counts", "stages")
        values: dict[str, Any] = {
            item.name: getattr(self, item.name) for item in fields(self) if item.name not in apart
        }
        values["comparison"] = asdict(self.comparison)
        values["stages"] = [asdict(stage) for stage in self.stages]
        values["counts"] = [
            {"batch_id": count.batch_id, "rows": count.rows, "p50_ms": latency_percentile(count.latencies, 0.5)}
            for count in self.counts
        ]
        values["is_good"] = self.is_good
        values["latency_ms"] = {str(share): latency_percentile(self.latencies, share) for share in (0.5, 0.9, 0.99)}
        values["rows_per_second"] = self.rows_per_second
        file.write_text(json.dumps(values, indent=2), encoding="utf-8")


def plot_latency(counts: list[BatchCount], split_at: float | None, file: Path) -> None:
    """Draw the latency of each micro-batch over time, and its rows below."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    start = counts[0].ended if counts else 0.0
    times = [count.ended - start for count in counts]
    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(9, 6), height_ratios=(3, 1), layout="constrained")
    for share, colour in ((0.99, "tab:red"), (0.5, "tab:blue")):
        values = [latency_percentile(count.latencies, share) for count in counts]
        upper.plot(times, values, color=colour, marker=".", linewidth=1, label=f"p{share * 100:.0f}")
    upper.set_yscale("log")
    upper.set_ylabel("put to row, ms")
    upper.set_title("Latency per micro-batch")
    lower.bar(times, [count.rows for count in counts], width=0.2, color="tab:gray")
    lower.set_ylabel("rows")
    lower.set_xlabel("seconds since the first micro-batch")
    if split_at is not None:
        for axis in (upper, lower):
            axis.axvline(split_at - start, color="tab:green", linestyle="--")
        upper.plot([], [], color="tab:green", linestyle="--", label="shard split")
    upper.legend()
    figure.savefig(file, dpi=120)
    plt.close(figure)
