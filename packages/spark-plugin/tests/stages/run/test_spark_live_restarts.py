"""Live queries that fail are started again by a policy, from their checkpoints."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_SECONDS
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.operator_attributes import StageState
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin._stages.run.failures import QueryRestarts, Restart, RestartPolicy
from penstock.spark_plugin.errors import PipelineDefinitionError

ON_FAILURE = RestartPolicy(restart="on-failure", per_hour=4)


class Table:
    """An idempotent table whose first writes fail."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.batches: dict[int, list[int]] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.batches = {**self.batches, batch_id: [row["n"] for row in frame.collect()]}


def numbers(spark: SparkSession, folder: Path) -> DataFrame:
    folder.mkdir(exist_ok=True)
    for value in range(3):
        (folder / f"{value}.csv").write_text(f"{value}\n")
    return spark.readStream.schema("n int").option("maxFilesPerTrigger", 1).csv(str(folder))


def job(folder: Path, table: Callable[..., None]) -> Pipeline:
    pipeline = Pipeline("job", store=folder / "store")
    pipeline.source(bounded=False, name="a")(lambda spark: numbers(spark, folder / "in"))
    pipeline.sink(name="out", inputs=["a"])(lambda a: a.writeStream.foreachBatch(table))
    return pipeline


def test_a_failed_query_continues(spark: SparkSession, tmp_path: Path, until: Callable[..., None]) -> None:
    """From its checkpoint, with no row lost; explain says how often, and why the last time."""
    table = Table(ConnectionError("no table"), ConnectionError("no table"), ValueError("half a row"))
    run = job(tmp_path, table).run(spark, restart="on-failure")
    until(lambda: len(table.batches) == 3, run.explain)
    assert sorted(n for rows in table.batches.values() for n in rows) == [0, 1, 2]
    assert run.states == {"out": StageState.RUNNING}
    assert not run.await_termination(0)
    explained = run.explain()
    assert "state: RUNNING, attempt 4" in explained
    assert "again after: ValueError: half a row (" in explained
    assert run.queries["out"].isActive
    run.stop()
    assert run.states == {"out": StageState.FINISHED}


def test_a_query_that_started_over_continues_in_its_own_checkpoint(
    spark: SparkSession, tmp_path: Path, until: Callable[..., None]
) -> None:
    """With `resume=False` a checkpoint that its writer names has to be empty as the run begins, not at a restart."""
    table = Table(ConnectionError("no table"))
    pipeline = Pipeline("job", store=tmp_path / "store")
    pipeline.source(bounded=False, name="a")(lambda spark: numbers(spark, tmp_path / "in"))
    own = str(tmp_path / "own")
    pipeline.sink(name="out", inputs=["a"])(
        lambda a: a.writeStream.foreachBatch(table).option("checkpointLocation", own)
    )
    run = pipeline.run(spark, restart="on-failure", resume=False)
    until(lambda: len(table.batches) == 3, run.explain)
    assert sorted(n for rows in table.batches.values() for n in rows) == [0, 1, 2]
    run.stop()


def test_an_error_that_repeats_itself_ends_the_stage(spark: SparkSession, tmp_path: Path) -> None:
    """The same record gives the same error: it is reported, and the query is retried once only."""

    def write(frame: DataFrame, batch_id: int) -> None:
        raise ZeroDivisionError("row 7")

    run = job(tmp_path, write).run(spark, restart="on-failure")
    with pytest.raises(StreamingQueryException, match="row 7"):
        run.await_termination(PATIENCE_SECONDS)
    place = f"{write.__code__.co_filename}:{write.__code__.co_firstlineno + 1}"
    (progress,) = run.progress.values()
    assert (progress.state, progress.attempts) == (StageState.FAILED, 2)
    assert progress.error == (
        f"ZeroDivisionError: row 7 ({place}, in write); not started again: micro-batch 0 failed in the same way twice"
    )
    run.stop()


def test_without_a_policy_a_failure_ends_the_stage(spark: SparkSession, tmp_path: Path) -> None:
    """As before; and a word that is not a policy is refused."""
    run = job(tmp_path, Table(ConnectionError("no table"))).run(spark)
    with pytest.raises(StreamingQueryException, match="no table"):
        run.await_termination(PATIENCE_SECONDS)
    (progress,) = run.progress.values()
    assert (progress.state, progress.attempts) == (StageState.FAILED, 1)
    run.stop()
    always: Any = "always"
    with pytest.raises(PipelineDefinitionError) as caught:
        job(tmp_path, Table()).run(spark, restart=always)
    assert str(caught.value) == "restart is 'always'; it must be 'never' or 'on-failure'"


@pytest.mark.parametrize("policy", ["never", "on-failure"])
def test_a_query_that_fails_while_it_is_looked_at_has_failed(
    spark: SparkSession, tmp_path: Path, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    """Behind the answer that it has no exception, and before the one that it is not active any more."""
    fails = threading.Event()
    table = Table(ConnectionError("no table"))

    def write(frame: DataFrame, batch_id: int) -> None:
        fails.wait(PATIENCE_SECONDS)
        table(frame, batch_id)

    real = StreamingQuery.exception

    def exception(query: StreamingQuery) -> StreamingQueryException | None:
        found = real(query)
        if not fails.is_set():
            fails.set()
            until(lambda: not query.isActive, "the query still runs")
        return found

    run = job(tmp_path, write).run(spark, restart=policy)
    monkeypatch.setattr(StreamingQuery, "exception", exception)
    if policy == "on-failure":
        until(lambda: len(table.batches) == 3, run.explain)
    else:
        until(lambda: run.states["out"] is not StageState.RUNNING, run.explain)
        assert run.states == {"out": StageState.FAILED}
    run.stop()


def test_pauses_grow_until_there_is_progress() -> None:
    """And begin again with it."""
    query = QueryRestarts(RestartPolicy(restart="on-failure", per_hour=20, longest_seconds=5.0))
    pauses = [query.failed(0.0, "ConnectionError: away", 7).seconds for _ in range(5)]
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert query.failed(0.0, "ConnectionError: away", 8).seconds == 1.0


def test_restarts_within_an_hour_are_counted() -> None:
    """Those of the hour before are not."""
    query = QueryRestarts(ON_FAILURE)
    for batch in range(4):
        assert query.failed(float(batch), "ValueError: x", batch).seconds == 1.0
    refused = Restart(None, "not started again: it was 4 times within an hour")
    assert query.failed(3599.0, "ValueError: x", 9) == refused
    assert query.failed(3600.5, "ValueError: x", 10).seconds == 1.0


@pytest.mark.parametrize(
    "error",
    [
        "ConnectionRefusedError: x",
        "botocore.exceptions.EndpointConnectionError: x",
        "TimeoutError",
        "ThrottlingError: x",
    ],
)
def test_what_is_away_may_be_away_for_long(error: str) -> None:
    """The same error at the same place does not mean a bad record."""
    query = QueryRestarts(ON_FAILURE)
    assert [query.failed(0.0, error, 3).seconds for _ in range(4)] == [1.0, 2.0, 4.0, 8.0]


def test_a_bad_record_is_not_tried_a_third_time() -> None:
    """Unless the query has come further, or fails in another way."""
    query = QueryRestarts(ON_FAILURE)
    assert query.failed(0.0, "ValueError: x", 3).seconds == 1.0
    assert query.failed(0.0, "ValueError: y", 3).seconds == 2.0
    assert query.failed(0.0, "ValueError: y", 4).seconds == 1.0
    assert query.failed(0.0, "ValueError: y", 4) == Restart(
        None, "not started again: micro-batch 4 failed in the same way twice"
    )
