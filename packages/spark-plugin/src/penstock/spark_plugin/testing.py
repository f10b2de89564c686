"""Helpers for tests: a reading session without Kinesis, and Kinesis options for an endpoint."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.efo_consumer import (
    Deaggregation,
    PositionsSnapshot,
    RecordPublisherType,
    ShardPosition,
    ShardStats,
    StreamConsumer,
    StreamPositions,
)
from penstock.rpc import ClientSecurity
from penstock.spark_plugin._options.kinesis_options import KinesisOptions

__all__ = ["FakeReadingSession", "FakeShardReader", "endpoint_options"]


def endpoint_options(endpoint_url: str, stream_name: str, **options: str) -> dict[str, str]:
    """Options of the data source for an embedded Kinesis, which takes any key; a gateway has keys of its own."""
    keys = {} if "sinkEndpoint" in options else {"awsAccessKeyId": "test", "awsSecretAccessKey": "test"}
    return {"streamName": stream_name, "endpointUrl": endpoint_url, "region": "us-east-1", **keys, **options}


@dataclass
class FakeShardReader:
    """A shard reader that knows how far each shard reaches, and no records."""

    reaches: dict[str, dict[str, ShardPosition]] = field(default_factory=dict)
    """Newest position by stream and shard; tests move them."""
    rows: int = 0
    """Records that the next answer claims to be beyond its start."""
    millis_behind_latest: int = 0
    opened_at: list[StreamPositions] = field(default_factory=list)
    committed: list[StreamPositions] = field(default_factory=list)
    limits: list[tuple[int, int]] = field(default_factory=list)
    """Records and bytes of each question."""
    buffered_bytes: dict[tuple[str, str], int] = field(default_factory=dict)
    closed: bool = False
    endpoint: str | None = None
    """The service's address; None for a reader in this process."""
    epoch: int = 0
    """Number of the run that opened it last."""
    patience_seconds: float = 0.0
    away: Sequence[str] = ()
    deaggregates: Deaggregation | None = None

    def open(
        self,
        session_id: str,
        positions: StreamPositions,
        record_publisher: RecordPublisherType = RecordPublisherType.EFO,
        consumers: Sequence[StreamConsumer] = (),
        *,
        fail_on_data_loss: bool | None = None,
        retry_patience_seconds: float | None = None,
        after_epoch: int = 0,
    ) -> int:
        """Note where it begins."""
        self.opened_at.append(positions)
        self.epoch = max(self.epoch, after_epoch) + 1
        return self.epoch

    def positions(
        self,
        start: StreamPositions,
        *,
        max_records: int = 0,
        max_bytes: int = 0,
        wait_seconds: float = 0.0,
        max_records_per_shard: int = 0,
        max_shard_skew_seconds: float | None = None,
    ) -> PositionsSnapshot:
        """Give `reaches` and `rows`, whatever the limits; the start where nothing was set."""
        self.limits.append((max_records, max_bytes))
        streams = {stream: {**shards, **self.reaches.get(stream, {})} for stream, shards in start.streams.items()}
        return PositionsSnapshot(StreamPositions(streams), self.rows, self.rows, self.millis_behind_latest)

    def commit(self, positions: StreamPositions) -> None:
        """Note it."""
        self.committed.append(positions)

    def stats(self) -> list[ShardStats]:
        """One entry per shard that has a reach."""
        return [
            ShardStats(stream, shard, self.millis_behind_latest, self.rows, self.rows, 1, self.rows, size, 0)
            for stream, shards in self.reaches.items()
            for shard in shards
            for size in [self.buffered_bytes.get((stream, shard), 0)]
        ]

    def close(self) -> None:
        """Note it."""
        self.closed = True


@dataclass
class FakeReadingSession:
    """A session for `KinesisStreamReader(options, session_factory=fake.open)`."""

    reader: FakeShardReader = field(default_factory=FakeShardReader)
    session_id: str = "fake-session"
    address: str = "127.0.0.1:1"
    sockets: dict[str, Path] = field(default_factory=dict)
    security: ClientSecurity = field(default_factory=ClientSecurity)
    lost: Exception | None = None
    """Raised by `check`, when set."""
    closed: bool = False

    def open(
        self, options: KinesisOptions, positions: StreamPositions, after_epoch: int = 0, query: str = ""
    ) -> "FakeReadingSession":
        """Open the reader at the positions."""
        if options.reader_endpoint:
            self.reader.endpoint = ",".join(options.reader_endpoint)
            self.reader.patience_seconds = options.retry_patience or math.inf
        self.reader.open(self.session_id, positions, after_epoch=after_epoch)
        return self

    def check(self) -> None:
        """Raise what a test has set."""
        if self.lost is not None:
            raise self.lost

    def positions(
        self,
        start: StreamPositions,
        *,
        max_records: int = 0,
        max_bytes: int = 0,
        wait_seconds: float = 0.0,
        max_records_per_shard: int = 0,
        max_shard_skew_seconds: float | None = None,
    ) -> PositionsSnapshot:
        """What the reader says."""
        return self.reader.positions(start, max_records=max_records, max_bytes=max_bytes, wait_seconds=wait_seconds)

    def prepare(self, streams: Sequence[str]) -> None:
        """There are no consumers to lease."""

    def extend(self, options: KinesisOptions, positions: StreamPositions) -> None:
        """Open the reader at the positions."""
        self.reader.open(self.session_id, positions)

    def close(self) -> None:
        """Close the reader."""
        self.reader.close()
        self.closed = True
