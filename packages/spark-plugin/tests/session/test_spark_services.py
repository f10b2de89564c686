from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from penstock.emulator.testing import RunningEmulator
from penstock.rpc.testing import service_process
from penstock.spark_plugin import kinesis_progress

for needed in ("consumer_registry", "shard_reader", "sink_gateway"):
    pytest.importorskip(f"penstock.services.{needed}")

TOKEN = "a-token-of-the-services-with-32-characters"


@dataclass(frozen=True)
class Addresses:
    registry: str
    reader: str
    sink: str


@pytest.fixture
def services(kinesis: RunningEmulator, tmp_path: Path) -> Iterator[Addresses]:
    """The three services as processes of their own, each asking for the token."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "PATH": ""}
    common = ["serve", "--region", "us-east-1", "--endpoint-url", kinesis.endpoint_url, "--token-file", str(token)]
    extra = {"consumer_registry": ["--store", f"sqlite:///{tmp_path / 'leases.db'}", "--grace-seconds", "0.5"]}
    with ExitStack() as stack:
        addresses = [
            stack.enter_context(
                service_process(f"penstock.services.{name}", [*common, *extra.get(name, [])], environment)
            ).address
            for name in ("consumer_registry", "shard_reader", "sink_gateway")
        ]
        yield Addresses(*addresses)


def test_services_do_the_same_as_the_parts_in_process(
    spark: SparkSession,
    make_stream: Callable[[int], Any],
    until: Callable[..., None],
    services: Addresses,
    tmp_path: Path,
) -> None:
    """With endpoints for registry, reader and sink a query gives the same records, and releases its consumer."""
    source, target = make_stream(2), make_stream(1)
    source.put(200)
    options = source.options(
        initialPosition="TRIM_HORIZON",
        recordPublisher="efo",
        efoConsumerName="served",
        readerEndpoint=services.reader,
        registryEndpoint=services.registry,
        serviceToken=TOKEN,
    )
    frame = spark.readStream.format("kinesis").options(**options).load().select("data", "partitionKey")
    sink = target.options(sinkEndpoint=services.sink, serviceToken=TOKEN)
    writer = frame.writeStream.format("kinesis").options(**sink)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    until(lambda: len(target.held()) >= 200, "the records are not written", query=query)
    assert source.consumers() == ["served"]
    until(lambda: any(one.numbers.records for one in kinesis_progress(query)), "no progress", query=query)
    (progress,) = kinesis_progress(query)
    assert (progress.reader, progress.numbers.records, progress.numbers.shards) == (services.reader, 200, 2)
    query.stop()
    assert sorted(target.held()) == sorted(source.put_keys.values())
    until(lambda: source.consumers() == [], "the consumer is not deregistered")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"flink.shard.subscribetoshard.backoff.max": "100"},
            r"'subscribeToShardBackoffBase' and 'flink\.shard\.subscribetoshard\.backoff\.max'",
        ),
        ({"readerEndpoint": "127.0.0.1:1", "fetchBufferSize": "64m"}, r"'fetchBufferSize' and 'readerEndpoint'"),
        ({"registryEndpoint": "127.0.0.1:1", "registryStore": "/store"}, r"'registryStore' and 'registryEndpoint'"),
    ],
)
def test_load_refuses_what_the_query_would_fail_by(
    spark: SparkSession, make_stream: Callable[[int], Any], options: dict[str, str], words: str
) -> None:
    """By the names that were written, as the frame is made: nothing is registered first."""
    stream = make_stream(1)
    given = stream.options(recordPublisher="efo", efoConsumerName="refused", efoRegistration="eager", **options)
    with pytest.raises(AnalysisException, match=words):
        spark.readStream.format("kinesis").options(**given).load()
    assert stream.consumers() == []
