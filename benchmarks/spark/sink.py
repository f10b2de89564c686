"""The cases of `hatch run bench spark-sink`: a DataFrame written from Spark to a server that answers success.

Ours is `df.write.format("kinesis")`. The peer is what people write today: boto3 in `foreachPartition`, 500 rows a call
of PutRecords, with what was refused put again. Both read the same cached DataFrame of `data` and `partitionKey`, on the
same session with two cores. Spark's own share (planning, tasks, rows on their way from the JVM to Python) counts for
both. Figures are megabytes of data per second: of processor time of all of Spark's processes (driver, JVM, workers;
not the server), which says what executors are needed, and which other work on the machine disturbs least; and, as
`-wall`, of time on the clock from the call to its return, with the server's share of the same two cores and with the
time that boto3 waits for each answer. A write during which Spark started or ended a worker is measured again: what the
worker took is not that write's, or not known.

Ours goes as it goes to the service itself, in CBOR; `-json` is what other endpoints get. The cases above write data
that is ready; `-values` makes it of the rows' columns, JSON of some 320 bytes: ours by `valueFormat`, the peer by
`json.dumps`.
"""

import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import boto3
from botocore.config import Config
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # as everybody writes it

from benchmarks import _jobs as jobs
from benchmarks._harness import Case, interleave
from benchmarks._processes import processor_seconds, seconds_between
from benchmarks.writing.put import success_server
from penstock.spark_plugin.testing import endpoint_options

_VALUES = 0
"""Stands for the size of rows of several columns."""
_ROWS = {1_000: 400_000, 400: 400_000, 100: 400_000, _VALUES: 400_000}
_CASES = (
    ("over-foreachPartition", 1_000, "cbor"),
    ("over-foreachPartition-json", 1_000, "json"),
    ("over-foreachPartition-400B", 400, "cbor"),
    ("over-foreachPartition-100B", 100, "cbor"),
    ("over-foreachPartition-values", _VALUES, "cbor"),
)
_TRIES = 5
# The JVM compiles what is used for long: its share of a write falls to a third over the first ones.
_WARM_WRITES = 10
_PARTITIONS = 4
_PER_REQUEST = 500


@functools.cache
def _frame(record_bytes: int) -> DataFrame:
    """Return rows in Spark's memory. Creating them is not measured."""
    rows = jobs.session().range(_ROWS[record_bytes], numPartitions=_PARTITIONS)
    digests = [F.sha2(F.concat(F.col("id"), F.lit(f"/{number}")), 512) for number in range(-(-record_bytes // 128))]
    data = F.substring(F.concat(*digests), 1, record_bytes).cast("binary").alias("data")
    key = F.concat(F.lit("key-"), F.col("id") % 1000).alias("partitionKey")
    frame = rows.select(data, key).cache()
    frame.count()
    return frame


@functools.cache
def _values_frame() -> DataFrame:
    """Rows as applications have them, in Spark's memory."""
    rows = jobs.session().range(_ROWS[_VALUES], numPartitions=_PARTITIONS)
    number = F.col("id")
    frame = rows.select(
        F.concat(F.lit("key-"), number % 1000).alias("partitionKey"),
        number.alias("orderId"),
        (number % 9_973).cast("int").alias("quantity"),
        (number * 0.25).alias("price"),
        (number % 3 == 0).alias("express"),
        F.timestamp_micros(1_700_000_000_000_000 + number * 1_000).alias("orderedAt"),
        F.when(number % 5 > 0, F.lit("EUR")).alias("currency"),
        F.substring(F.sha2(number.cast("string"), 256), 1, 40).alias("customer"),
        F.sha2(number.cast("string"), 512).alias("comment"),
    ).cache()
    frame.count()
    return frame


@functools.cache
def _megabytes(record_bytes: int) -> float:
    """Return the megabytes that one write sends."""
    if record_bytes != _VALUES:
        return _ROWS[record_bytes] * record_bytes / 1e6
    text = F.to_json(F.struct(*[name for name in _values_frame().columns if name != "partitionKey"]))
    (row,) = _values_frame().select(F.sum(F.length(text))).collect()
    return float(row[0]) / 1e6


def _few(frame: DataFrame) -> DataFrame:
    return frame.limit(40).repartition(_PARTITIONS)


class _Measured:
    """Writes the frame when called, and remembers what it took besides."""

    def __init__(self, write: Callable[[DataFrame], None], record_bytes: int) -> None:
        self._write = write
        self._frame = _values_frame() if record_bytes == _VALUES else _frame(record_bytes)
        self._few_rows = _few(self._frame)
        self._megabytes = _megabytes(record_bytes)
        self.wall: list[float] = []
        self.seconds: list[dict[str, float]] = []

    def __call__(self) -> float:
        """Megabytes per second of processor time.

        Raises:
            RuntimeError: the next write used other workers.
        """
        for _ in range(_TRIES):
            # Spark ends workers that were idle for a minute: starting them is not what is measured.
            self._write(self._few_rows)
            before, began = processor_seconds(), time.perf_counter()
            self._write(self._frame)
            wall, after = time.perf_counter() - began, processor_seconds()
            if before.keys() == after.keys():
                self.wall.append(self._megabytes / wall)
                self.seconds.append(seconds_between(before, after))
                return self._megabytes / sum(self.seconds[-1].values())
        raise RuntimeError(f"workers started or ended in each of {_TRIES} writes")

    def parts(self) -> dict[str, float]:
        """Median seconds of the processor by part of Spark, of one write."""
        rounds = self.seconds[1:]
        return {part: round(statistics.median(one[part] for one in rounds), 2) for part in rounds[0]}


def penstock(endpoint: str, record_bytes: int, wire_format: str = "cbor") -> _Measured:
    """The data source."""
    options = endpoint_options(endpoint, "s", wireFormat=wire_format)
    if record_bytes == _VALUES:
        options["valueFormat"] = "json"

    def write(frame: DataFrame) -> None:
        frame.write.format("kinesis").options(**options).mode("append").save()

    return _Measured(write, record_bytes)


def boto3_rows(endpoint: str, record_bytes: int) -> _Measured:
    """boto3 over the rows of a partition."""
    put = functools.partial(_put_partition, endpoint, _value_of if record_bytes == _VALUES else _data_of)
    return _Measured(lambda frame: frame.foreachPartition(put), record_bytes)


def _data_of(row: Row) -> bytes:
    return bytes(row.data)


def _value_of(row: Row) -> bytes:
    value = row.asDict()
    del value["partitionKey"]
    return json.dumps(value, default=str).encode()


def _put_partition(endpoint: str, data_of: Callable[[Row], bytes], rows: Iterator[Row]) -> None:
    client: Any = boto3.client(
        "kinesis",
        region_name="us-east-1",
        endpoint_url=endpoint,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"mode": "standard"}),
    )
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append({"Data": data_of(row), "PartitionKey": row.partitionKey})
        if len(chunk) == _PER_REQUEST:
            _put_chunk(client, chunk)
            chunk = []
    _put_chunk(client, chunk)


def _put_chunk(client: Any, chunk: list[dict[str, Any]]) -> None:
    while chunk:
        answer = client.put_records(StreamName="s", Records=chunk)
        if not answer["FailedRecordCount"]:
            return
        chunk = [record for record, one in zip(chunk, answer["Records"], strict=True) if "ErrorCode" in one]


def run(rounds: int) -> Iterator[Case]:
    """Rows of 1 kB, of 400 and of 100 bytes, and of values."""
    with success_server() as endpoint:
        warm = penstock(endpoint, _CASES[0][1]), boto3_rows(endpoint, _CASES[0][1])
        for _ in range(_WARM_WRITES):
            for one in warm:
                one()
        for name, record_bytes, wire_format in _CASES:
            ours, peer = penstock(endpoint, record_bytes, wire_format), boto3_rows(endpoint, record_bytes)
            yield interleave(name, ours, peer, peer_name="foreachPartition", unit="MB/s", rounds=rounds)
            print(f"spark-sink {name}: seconds of the processor a write: ours {ours.parts()}, peer {peer.parts()}")
            yield Case(
                name=f"{name}-wall",
                peer_name="foreachPartition",
                unit="MB/s",
                ours=ours.wall[1:],
                peers=peer.wall[1:],
            )
