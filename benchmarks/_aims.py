"""What the ratios of the benchmarks should be, by benchmark and case; the others are there to be looked at."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Aim:
    """A bound of a ratio."""

    bound: float
    is_least: bool
    """Whether the ratio should be at least, rather than at most, the bound."""

    def is_met(self, ratio: float) -> bool:
        """Whether a ratio is within the bound."""
        return ratio >= self.bound if self.is_least else ratio <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.is_least else '<='}{self.bound:g}"


def at_least(bound: float) -> Aim:
    """The aim of a rate."""
    return Aim(bound, is_least=True)


def at_most(bound: float) -> Aim:
    """The aim of a time, or of a size."""
    return Aim(bound, is_least=False)


AIMS: Mapping[str, Mapping[str, Aim]] = {
    "cogroup": {
        "streaming-over-end-of-stream": at_least(15),
        "one-batch-streaming-over-end-of-stream": at_least(3),
    },
    "compile": {"100000-operators": at_most(1)},
    "consume": {
        "http2-100B": at_least(12),
        "http2-1kB": at_least(5),
        "http1-100B": at_least(20),
        "http1-1kB": at_least(7),
    },
    "decode": {
        "100B": at_least(25),
        "1kB": at_least(13),
        "25kB": at_least(9),
        "100B-of-floor": at_least(0.5),
        "1kB-of-floor": at_least(0.7),
        "25kB-of-floor": at_least(0.7),
    },
    "emulator": {"full-rate-of-100-shards": at_most(1)},
    "executor-readers": {"source-processor-time": at_most(0.1)},
    "fetch": {"grpc-processor-time": at_least(0.8)},
    "fleet": {"killed-shards-flow": at_most(1), "moved-by-a-fourth": at_most(1)},
    "gateway": {f"clients-{clients}{suffix}": at_least(0.7) for clients in (1, 8, 64) for suffix in ("", "-processor")},
    "hot-shard": {"others-over-their-share": at_least(0.9), "one-source-over-its-rate": at_least(0.95)},
    "put": {"boto3-100B": at_least(10), "boto3-1kB": at_least(7), "async-kinesis-100B": at_least(20)},
    "recover": {"seconds-to-90-percent": at_most(3)},
    # Fifty thousand leases on one core.
    "registry": {"renew-over-transaction": at_least(10), "core-share-of-10000-leases": at_most(0.2)},
    "restart": {"polling-first-new-row": at_most(1.3), "efo-first-new-row": at_most(1.3)},
    "resume": {"fresh-over-resumed": at_least(7), "light-fresh-over-resumed": at_least(5)},
    "scale": {
        "offset-idle-shard": at_most(1),
        "subscribe-8000": at_most(1),
        "shard-memory": at_most(1),
    },
    "shards": {"busy-1000-over-1": at_most(1.5), "idle-1000-cores": at_most(1), "idle-1000-memory": at_most(1)},
    "sink-overhead": {
        "records-per-second-write": at_least(500_000),
        "records-per-second-write-many": at_least(2_500_000),
        "records-per-second-write-many-read": at_least(2_500_000),
    },
    "slots": {"estimated-over-measured": at_most(1.25)},
    "spark-idle": {"python-percent-of-core": at_most(1), "all-percent-of-core": at_most(1)},
    "spark-latency": {
        "p50-over-ceiling-4": at_most(1.3),
        "p50-over-ceiling-64": at_most(1.3),
        "polling-over-efo": at_most(2),
    },
    "spark-scale": {"micro-batch-8000-over-8": at_most(3), "first-row-8000": at_most(1)},
    "spark-sink": {"over-foreachPartition": at_least(8), "over-foreachPartition-wall": at_least(8)},
    "spark-source": {"over-ceiling": at_least(0.7)},
    "stage": {
        "naive-over-staged": at_least(15),
        "break-even-batches": at_most(2),
        "light-naive-over-staged": at_least(5),
        "light-break-even-batches": at_most(2),
        "s3-over-folder": at_most(1.3),
    },
    "start": {
        f"{name}-{case}": aim
        for name in ("polling", "efo")
        for case, aim in (
            ("first-row", at_most(1.3)),
            ("idle-run-more", at_most(1)),
            ("three-second-runs", at_least(1)),
        )
    },
    "throttle": {"goodput-over-limit": at_least(0.98), "throttled-share": at_most(0.05)},
    "tracing": {"traced-over-untraced": at_least(0.97), "traced-and-metered-over-untraced": at_least(0.97)},
}
