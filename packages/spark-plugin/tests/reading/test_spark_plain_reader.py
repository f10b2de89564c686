"""What the streaming source does where Spark tells it neither start nor limit nor trigger, as 4.0 and 4.1 do."""

import json
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.efo_consumer import ShardPosition, StreamPositions
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.stream import plain_reader
from penstock.spark_plugin._reading.stream.available_now import Target
from penstock.spark_plugin._reading.stream.plain_reader import PlainStreamReader, stream_reader
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin._schema import read_schema
from penstock.spark_plugin.testing import FakeReadingSession

OPTIONS = KinesisOptions(stream_name=("flights",), latest_offset_wait=0.01)


def at(number: int) -> StreamPositions:
    return StreamPositions({"flights": {"s0": ShardPosition.after(str(number))}})


class Ending:
    """A run that finds a record 5 as it begins."""

    def __init__(self, _: KinesisOptions) -> None:
        """Nothing is looked for."""

    def target(self, start: StreamPositions) -> Target:
        return Target(at(5).streams, {("flights", "s0"): 5})

    def expired(self, needed: Mapping[tuple[str, str], int]) -> set[tuple[str, str]]:
        return set()


def plain(session: FakeReadingSession, options: KinesisOptions = OPTIONS) -> PlainStreamReader:
    inner = KinesisStreamReader(options, session_factory=session.open, resolve=lambda _: at(1), available_now=Ending)
    return PlainStreamReader(inner, options)


def reaching(number: int) -> FakeReadingSession:
    session = FakeReadingSession()
    session.reader.reaches, session.reader.rows = dict(at(number).streams), 3  # type: ignore[arg-type]  # of mappings
    return session


def streams(offset: Mapping[str, Any]) -> StreamPositions:
    return StreamPositions.from_json(offset)


def test_a_new_query_first_reads_what_was_there_and_then_what_comes() -> None:
    """The first micro-batch may be all of a run: it ends at what was there, and the next one begins where it ended."""
    source = plain(reaching(9))
    first = source.latestOffset()
    assert streams(first) == at(5)
    assert len(source.partitions(source.initialOffset(), first)) == 1
    second = source.latestOffset()
    assert streams(second) == at(9)
    assert source.latestOffset() is second


def test_query_continues_from_the_range_that_spark_shows_first() -> None:
    """Spark shows where it stands as a range without anything in it, or with the micro-batch that it has to repeat."""
    session = reaching(9)
    source = plain(session)
    stands = json.loads(json.dumps(at(3).to_json()))
    assert source.partitions(stands, stands) == []
    assert streams(source.latestOffset()) == at(5)
    assert session.reader.opened_at == [at(3)]

    ended = plain(FakeReadingSession())
    assert ended.partitions(at(7).to_json(), at(7).to_json()) == []
    assert ended.partitions(at(3).to_json(), at(7).to_json()) != []
    # Beyond what is looked for: nothing is read twice, and nothing makes a micro-batch.
    assert streams(ended.latestOffset()) == at(7)


def test_a_limit_bounds_all_micro_batches_but_the_first(caplog: pytest.LogCaptureFixture) -> None:
    """The first one may be all of a run, and reads what was there: a warning names the options, once."""
    session = reaching(9)
    source = plain(session, KinesisOptions(stream_name=("flights",), latest_offset_wait=0.01, max_records_per_batch=3))
    with caplog.at_level(logging.WARNING):
        assert streams(source.latestOffset()) == at(5)
        assert session.reader.limits == [(0, 0)]
        source.latestOffset()
        source.latestOffset()
    assert session.reader.limits[1:] == [(3, 0), (3, 0)]
    (record,) = caplog.records
    assert "maxRecordsPerBatch" in record.getMessage()


def test_tasks_get_the_options_alone() -> None:
    """Where the query stands is not pickled into each task: it has all shards in it."""
    source = plain(reaching(9))
    source.latestOffset()
    copy = pickle.loads(pickle.dumps(source))
    assert len(pickle.dumps(copy)) == len(pickle.dumps(source))
    with pytest.raises(TypeError, match="not a partition of this source"):
        list(copy.read(object()))


def test_the_reader_is_the_one_that_spark_can_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark versions that pass limits use the reader itself; for others `PlainStreamReader` calls it."""
    monkeypatch.setattr(plain_reader, "SPARK_TELLS_LIMITS", True)
    assert isinstance(stream_reader(OPTIONS), KinesisStreamReader)
    monkeypatch.setattr(plain_reader, "SPARK_TELLS_LIMITS", False)
    assert isinstance(stream_reader(OPTIONS), PlainStreamReader)


def plain_source() -> type[DataSource]:
    """The data source as before Spark 4.2: any Spark asks such a reader as 4.1 does. Local, so pickled by value."""

    class PlainKinesis(DataSource):
        @classmethod
        def name(cls) -> str:
            return "plain-kinesis"

        def schema(self) -> StructType:
            return read_schema(KinesisOptions.parse(self.options))

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            options = KinesisOptions.parse(self.options)
            return PlainStreamReader(KinesisStreamReader(options), options)

    return PlainKinesis


def test_runs_that_end_by_themselves_read_everything_once(
    spark: SparkSession, make_stream: Any, collected: Any, tmp_path: Path
) -> None:
    """Asked as before Spark 4.2, each run reads what was put since the last one and all of it, over a split as well."""
    stream = make_stream(2)
    spark.dataSource.register(plain_source())
    frame = spark.readStream.format("plain-kinesis").options(**stream.options(initialPosition="TRIM_HORIZON")).load()
    writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(tmp_path / "checkpoint"))
    for run in range(3):
        stream.put(300)
        if run == 1:
            stream.split("shardId-000000000000")
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        assert collected.data == stream.put_keys
        assert len(collected.keys) == len(stream.put_keys)
        assert len(collected.batches) == run + 1
