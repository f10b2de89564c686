import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.config import Config
from patience import PATIENCE_SECONDS
from pyspark import SparkContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin import configure, ensure_java
from penstock.spark_plugin.testing import endpoint_options


def pytest_configure() -> None:
    """Let all processes of Spark find the Java and the Python of the tests, before any session."""
    ensure_java()


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Put back what a reader does to SIGTERM in its own process: processes that later tests start would inherit it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def stays_classic() -> Iterator[None]:
    """Fail a test that leaves this process in Spark Connect mode, which would fail later tests."""
    yield
    left = os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    assert left is None, "make the session by pyspark.sql.connect.session.SparkSession, and set this for the test alone"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests: starting one takes seconds."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        # Its JVM answers clients of Spark Connect, too.
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    builder = configure(SparkSession.builder.master("local[2]").appName("penstock tests"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    if SparkSession.getActiveSession() is None:
        end_jvm()
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    end_jvm()


@pytest.fixture(autouse=True)
def no_query_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """One that failed half-way must not spoil those after it."""
    yield
    session = getattr(request.node, "funcargs", {}).get("spark")
    if isinstance(session, SparkSession):
        for query in session.streams.active:
            query.stop()


def end_jvm() -> None:
    """End the JVM, which would outlive its session with the environment of these tests."""
    gateway: Any = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def kinesis() -> Iterator[RunningEmulator]:
    """One embedded Kinesis for all tests; each makes streams of its own."""
    with running_emulator() as emulator:
        yield emulator


class Stream:
    """A stream of the embedded Kinesis, and what was put into it."""

    def __init__(self, emulator: RunningEmulator, name: str) -> None:
        self.emulator = emulator
        # Tests look often, and a shard lets itself be read five times a second.
        self.client: Any = emulator.client(config=Config(retries={"mode": "standard", "max_attempts": 15}))
        self.name = name
        self.put_keys: dict[tuple[str, str], bytes] = {}
        """Data by shard id and sequence number."""

    def options(self, *, tls: bool = False, **options: str) -> dict[str, str]:
        """Options of the data source."""
        url = self.emulator.tls_endpoint_url if tls else self.emulator.endpoint_url
        if tls:
            options["caBundle"] = str(self.emulator.ca_file)
        return endpoint_options(url, self.name, **options)

    def put(self, count: int) -> None:
        """Put records, each with its own data, over all shards."""
        first = len(self.put_keys)
        pending = [str(number).encode() for number in range(first, first + count)]
        while pending:
            records = [{"Data": data, "PartitionKey": data.decode()} for data in pending[:500]]
            answers = self.client.put_records(StreamName=self.name, Records=records)["Records"]
            refused = []
            for data, answer in zip(pending[:500], answers, strict=True):
                if "SequenceNumber" in answer:
                    self.put_keys[answer["ShardId"], answer["SequenceNumber"]] = data
                else:
                    refused.append(data)
            pending = refused + pending[500:]

    def split(self, shard_id: str) -> None:
        """Split a shard in the middle of its hash keys."""
        shards = self.client.list_shards(StreamName=self.name)["Shards"]
        keys = next(one["HashKeyRange"] for one in shards if one["ShardId"] == shard_id)
        middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard_id, NewStartingHashKey=str(middle))

    def held(self) -> list[bytes]:
        """The data of all records in the stream, read by plain boto3."""
        found = []
        for shard in self.client.list_shards(StreamName=self.name)["Shards"]:
            iterator = self.client.get_shard_iterator(
                StreamName=self.name, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            while iterator:
                answer = self.client.get_records(ShardIterator=iterator)
                found += [record["Data"] for record in answer["Records"]]
                iterator = answer.get("NextShardIterator") if answer["MillisBehindLatest"] > 0 else None
        return found

    def consumers(self) -> list[str]:
        """Names of the stream's consumers."""
        arn = self.client.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]["StreamARN"]
        return [one["ConsumerName"] for one in self.client.list_stream_consumers(StreamARN=arn)["Consumers"]]

    def register(self, consumer_name: str) -> str:
        """Register a consumer, as a user would; its ARN, when it is ACTIVE."""
        arn = self.client.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]["StreamARN"]
        made = self.client.register_stream_consumer(StreamARN=arn, ConsumerName=consumer_name)["Consumer"]
        consumer_arn = made["ConsumerARN"]

        def is_active() -> bool:
            found = self.client.describe_stream_consumer(ConsumerARN=consumer_arn)
            return bool(found["ConsumerDescription"]["ConsumerStatus"] == "ACTIVE")

        wait_until(is_active, "the consumer is not ACTIVE")
        return str(consumer_arn)


@pytest.fixture
def make_stream(kinesis: RunningEmulator) -> Callable[[int], Stream]:
    """Makes a stream with a number of shards."""

    def make(shards: int) -> Stream:
        stream = Stream(kinesis, f"stream-{uuid.uuid4().hex[:8]}")
        stream.client.create_stream(StreamName=stream.name, ShardCount=shards)
        wait_until(lambda: _status(stream) == "ACTIVE", "the stream is not ACTIVE")
        return stream

    return make


def _status(stream: Stream) -> str:
    summary = stream.client.describe_stream_summary(StreamName=stream.name)["StreamDescriptionSummary"]
    return str(summary["StreamStatus"])


class Collected:
    """Rows of a query by micro-batch: a micro-batch that runs again replaces itself, as in an idempotent table."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        # A new one, as this is a thread of Spark's, and tests go through the old one meanwhile.
        self.batches = {**self.batches, batch_id: frame.collect()}

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Shard id and sequence number of each row."""
        return [(row["shardId"], row["sequenceNumber"]) for rows in self.batches.values() for row in rows]

    @property
    def data(self) -> dict[tuple[str, str], bytes]:
        """Data by shard id and sequence number."""
        return {
            (row["shardId"], row["sequenceNumber"]): bytes(row["data"])
            for rows in self.batches.values()
            for row in rows
        }


@pytest.fixture
def collected() -> Collected:
    """An idempotent table for `foreachBatch`."""
    return Collected()


@pytest.fixture
def until() -> Callable[..., None]:
    """Waits for a condition; fails a query's test with the query's own error."""
    return wait_until


def wait_until(
    condition: Callable[[], bool],
    what: str | Callable[[], str],
    *,
    seconds: float = PATIENCE_SECONDS,
    query: StreamingQuery | None = None,
) -> None:
    """Poll a condition until a deadline; the failure may be a function that describes the state at the end."""
    deadline = time.monotonic() + seconds
    while not condition():
        if query is not None and query.exception() is not None:
            pytest.fail(f"the query failed: {query.exception()}")
        if time.monotonic() > deadline:
            pytest.fail(what if isinstance(what, str) else what())
        time.sleep(0.05)
