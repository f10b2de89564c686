import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from pyspark.sql import SparkSession

from penstock.efo_consumer import (
    ShardCondition,
    ShardPosition,
    ShardState,
    ShardStats,
    StreamPositions,
)
from penstock.spark_plugin import (
    KinesisOptions,
    KinesisProgress,
    KinesisProgressListener,
    ProgressMetrics,
    ReaderNumbers,
    kinesis_progress,
    log_progress,
)
from penstock.spark_plugin._reading.reader_numbers import QueryMetrics
from penstock.spark_plugin._reading.stream import reader as stream_reader
from penstock.spark_plugin._spark import SPARK_TELLS_LIMITS, ReadMaxRows
from penstock.spark_plugin.testing import FakeReadingSession

NAMES = {
    "minMillisBehindLatest",
    "avgMillisBehindLatest",
    "maxMillisBehindLatest",
    "shards",
    "shardsReading",
    "shardsCaughtUp",
    "shardsThrottled",
    "shardsRefused",
    "shardsResubscribing",
    "shardsStarved",
    "shardsHeldBack",
    "shardsStuck",
    "shardsLeftBehind",
    "shardSkewMillis",
    "heldBackMillis",
    "shardsAtGuessedTip",
    "records",
    "bytes",
    "subscriptions",
    "replays",
    "losses",
    "starved",
    "userRecordsOfSiblings",
    "userRecordsOutsideShard",
    "bufferedRecords",
    "bufferedBytes",
}
"""The names are promised to users, for dashboards and alarms."""


def shard(name: str, lag: int, **numbers: Any) -> ShardStats:
    given: dict[str, Any] = {
        "records": 1,
        "bytes": 10,
        "subscriptions": 1,
        "buffered_records": 0,
        "buffered_bytes": 0,
        "replays": 0,
    }
    return ShardStats("flights", name, lag, **{**given, **numbers})


def collected(reader: InMemoryMetricReader) -> dict[str, dict[tuple[tuple[str, Any], ...], float]]:
    """Values by name and attributes. OpenTelemetry's names have no letter case; its SDK writes some in lower case."""
    data, cased = reader.get_metrics_data(), {name.lower(): name for name in (*NAMES, "microBatches", "inputRows")}
    return {
        cased[metric.name.lower()]: {
            tuple(sorted((point.attributes or {}).items())): point.value
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint)
        }
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@pytest.fixture
def sdk() -> tuple[InMemoryMetricReader, MeterProvider]:
    """An application's OpenTelemetry."""
    reader = InMemoryMetricReader()
    return reader, MeterProvider(metric_readers=[reader])


def test_numbers_of_a_query_are_sums_over_its_shards() -> None:
    """Only followed shards have a lag: a shard that was read to its end counts its records, and has none."""
    stats = [
        shard("s0", 0, replays=2),
        shard("s1", 500),
        shard("s2", -1, losses=1, starved=3),
        shard("s3", 90_000, records=7, user_records_of_siblings=4, user_records_outside_shard=5),
    ]
    ended = StreamPositions({"flights": {"s3": ShardPosition.shard_end(), "s1": ShardPosition.after("4")}})
    numbers = ReaderNumbers.of(stats, ended)
    assert (numbers.min_millis_behind_latest, numbers.max_millis_behind_latest) == (0, 500)
    assert numbers.avg_millis_behind_latest == 250
    assert (numbers.shards, numbers.records, numbers.bytes, numbers.subscriptions) == (3, 10, 40, 4)
    assert (numbers.replays, numbers.losses, numbers.starved) == (2, 1, 3)
    assert (numbers.user_records_of_siblings, numbers.user_records_outside_shard) == (4, 5)
    assert ReaderNumbers.of(stats).max_millis_behind_latest == 90_000
    assert ReaderNumbers.of([]).max_millis_behind_latest == -1
    assert set(numbers.to_json()) == NAMES | {"millisBehindLatest", "heldBackBy", "condition"}
    report = json.loads(json.dumps(numbers.to_json()))
    assert ReaderNumbers.from_json(report) == numbers
    del report["starved"]
    assert ReaderNumbers.from_json(report) == replace(numbers, starved=0), "the report of an older server"


def test_query_reports_the_states_of_its_shards() -> None:
    """How many are in each state, and of the one in the worst trouble since when and why; ended ones are left out."""
    conditions = [
        ShardCondition(ShardState.CAUGHT_UP),
        ShardCondition(ShardState.THROTTLED, 2_000, "Rate exceeded"),
        ShardCondition(ShardState.REFUSED, 3_000, "no answer"),
        ShardCondition(ShardState.REFUSED, 1_000, "first"),
        ShardCondition(ShardState.ENDED),
    ]
    stats = [replace(shard(f"s{place}", 0), condition=one) for place, one in enumerate(conditions)]
    numbers = ReaderNumbers.of(stats, StreamPositions({"flights": {"s4": ShardPosition.shard_end()}}))
    assert (numbers.shards, numbers.shards_caught_up) == (4, 1)
    assert (numbers.shards_throttled, numbers.shards_refused, numbers.shards_stuck) == (1, 2, 0)
    assert numbers.condition == "flights/s3: refused since 1970-01-01T00:00:01Z: first"
    report = json.loads(json.dumps(numbers.to_json()))
    assert (report["shardsRefused"], report["condition"]) == (2, numbers.condition)
    assert ReaderNumbers.from_json(report) == numbers
    assert ReaderNumbers.of(stats[:1]).condition == ""


def test_the_reader_in_the_driver_gives_opentelemetry_metrics(
    sdk: tuple[InMemoryMetricReader, MeterProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One time series a query and number, from the first micro-batch to the end; a reader that is away gives none."""
    reader, provider = sdk
    now = [0.0]
    metrics = QueryMetrics(provider.get_meter("test"), clock=lambda: now[0])
    monkeypatch.setattr(stream_reader, "query_metrics", lambda: metrics)
    session = FakeReadingSession()
    session.reader.reaches = {"flights": {f"s{number}": ShardPosition.after("7") for number in range(64)}}
    session.reader.rows, session.reader.millis_behind_latest = 3, 250
    source = stream_reader.KinesisStreamReader(
        KinesisOptions(stream_name=("flights",), latest_offset_wait=0.01), session_factory=session.open
    )
    assert collected(reader) == {}
    start = StreamPositions({"flights": {"s0": ShardPosition.after("1")}}).to_json()
    source.latestOffset(start, ReadMaxRows(1000))
    found = collected(reader)
    assert set(found) == NAMES
    attributes = (("penstock.session_id", "fake-session"), ("penstock.streams", "flights"))
    assert all(set(series) == {attributes} for series in found.values())
    assert found["maxMillisBehindLatest"][attributes] == 250
    assert (found["records"][attributes], found["shards"][attributes]) == (3 * 64, 64)
    report = source.reportLatestOffset()
    assert report is not None
    assert {name: next(iter(series.values())) for name, series in found.items()} == {n: report[n] for n in NAMES}
    now[0] += 60
    with monkeypatch.context() as patch:
        patch.setattr(session.reader, "stats", lambda: 1 / 0)
        assert collected(reader) == {}
    source.stop()
    assert collected(reader) == {}


def progress_of(run: str, *, source: Mapping[str, Any]) -> Any:
    document = {"id": "q", "runId": run, "name": "delays", "batchId": 4, "timestamp": "2026-01-01T00:00:00.000Z"}
    return {**document, "sources": [{"numInputRows": 1, "latestOffset": "17"}, source]}


def test_progress_is_parsed_wherever_it_comes_from() -> None:
    """Spark gives an object or a dictionary, the report a text or a dictionary; other sources are left out."""
    numbers = ReaderNumbers.of([shard("s0", 40)])
    report = {"streams": ["flights"], "reader": "10.0.0.2:4711", **numbers.to_json()}
    for latest in (report, json.dumps(report)):
        (found,) = kinesis_progress(progress_of("r", source={"numInputRows": 9, "latestOffset": latest}))
        assert (found.query_name, found.run_id, found.batch_id, found.source) == ("delays", "r", 4, 1)
        assert (found.streams, found.reader, found.input_rows) == (("flights",), "10.0.0.2:4711", 9)
        assert found.numbers == numbers
    assert kinesis_progress(None) == []
    assert kinesis_progress(progress_of("r", source={"latestOffset": None})) == []
    assert kinesis_progress(SimpleNamespace(lastProgress=None)) == []  # type: ignore[arg-type]  # a query


def test_progress_is_a_table_in_a_notebook() -> None:
    """A row per source, with both lags; values are text, whatever a query is called."""
    numbers = ReaderNumbers.of([shard("s0", 40), shard("s1", -1)])
    report = {"streams": ["flights"], "reader": "10.0.0.2:4711", **numbers.to_json()}
    found = kinesis_progress({**progress_of("r", source={"latestOffset": report}), "name": "<img src=x onerror=a()>"})
    for shown in (found._repr_html_(), found[0]._repr_html_()):
        assert shown.count("<tr>") == 2
        assert "&lt;img src=x onerror=a()&gt;" in shown
        assert "<img" not in shown
        assert "<td>flights</td>" in shown
        assert "<td>40</td>" in shown
        assert "<th>read, not taken: records</th>" in shown
    assert kinesis_progress(None)._repr_html_().count("<tr>") == 1


def test_handlers_of_a_listener_are_independent(
    sdk: tuple[InMemoryMetricReader, MeterProvider], caplog: pytest.LogCaptureFixture
) -> None:
    """One that fails is logged; counters tell what is new since the last progress, over restarts too."""
    reader, provider = sdk
    seen: list[KinesisProgress] = []
    metrics = ProgressMetrics(provider.get_meter("test"))

    def fail(_: KinesisProgress) -> None:
        raise ZeroDivisionError

    listener = KinesisProgressListener(fail, seen.append, metrics, log_progress)

    def tell(run: str, records: int, lag: int) -> None:
        report = {"streams": ["flights"], **ReaderNumbers.of([shard("s0", lag, records=records)]).to_json()}
        source = {"numInputRows": 1, "latestOffset": json.dumps(report)}
        listener.onQueryProgress(SimpleNamespace(progress=progress_of(run, source=source)))  # type: ignore[arg-type]

    with caplog.at_level(logging.INFO, "penstock.spark_plugin._reading.progress_listener"):
        tell("one", 5, -1)
        tell("one", 8, 30)
        listener.onQueryTerminated(SimpleNamespace(runId="one"))  # type: ignore[arg-type]  # an event
        tell("two", 4, 20)
    assert [one.numbers.records for one in seen] == [5, 8, 4]
    found = collected(reader)
    assert set(found) == NAMES | {"microBatches", "inputRows"}
    attributes = (("penstock.query_id", "q"), ("penstock.query_name", "delays"), ("penstock.streams", "flights"))
    assert found["records"] == {attributes: 12}
    assert (found["microBatches"], found["inputRows"]) == ({attributes: 3}, {attributes: 3})
    assert found["maxMillisBehindLatest"] == {attributes: 20}
    assert "20 to 20 ms behind" in caplog.text
    assert "a handler of Kinesis progress failed" in caplog.text


@pytest.mark.skipif(not SPARK_TELLS_LIMITS, reason="before Spark 4.2 a Python source tells no numbers")
def test_a_query_shows_its_lag_and_keeps_its_secrets(
    spark: SparkSession,
    make_stream: Callable[[int], Any],
    until: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`lastProgress`, a listener and `explain` tell which streams are read and how; keys are nowhere."""
    source = make_stream(2)
    source.put(40)
    secrets = {"awsSecretAccessKey": "hush-1", "awsSessionToken": "hush-2"}
    options = source.options(initialPosition="TRIM_HORIZON") | secrets
    role = {"roleArn": "arn:aws:iam::1:role/reader", "roleExternalId": "hush-4"}
    spark.readStream.format("kinesis").options(**options, **role).load().explain("extended")
    seen: list[KinesisProgress] = []
    listener = KinesisProgressListener(seen.append)
    spark.streams.addListener(listener)
    frame = spark.readStream.format("kinesis").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.queryName("delays").start()
    try:
        until(lambda: sum(one.input_rows for one in seen) >= 40, "no progress", query=query)
        until(lambda: kinesis_progress(query)[0].numbers.max_millis_behind_latest == 0, "it lags", query=query)
        (progress,) = kinesis_progress(query)
        query.explain(True)
        assert query.lastProgress is not None
        text = query.lastProgress.json
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    shown = capsys.readouterr().out
    assert source.name in shown
    assert "hush" not in shown + text
    assert "awsSecretAccessKey=*********(redacted)" in shown
    assert (progress.query_name, progress.streams) == ("delays", (source.name,))
    assert progress.reader.startswith("127.0.0.1:")
    assert (progress.numbers.shards, progress.numbers.subscriptions) == (2, 2)
    assert sum(one.input_rows for one in seen) == 40
    assert query.lastProgress is not None
    assert json.loads(query.lastProgress.sources[0].latestOffset)["millisBehindLatest"] == 0
