import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.emulator.testing import OtherClock, running_emulator
from penstock.operator_attributes import OperatorAttributes, StageState
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin._for_stages import bounded_read
from penstock.spark_plugin.testing import endpoint_options

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
PAST = "2024-11-01T00:00:00Z"


def counted(store: Path, options: dict[str, str]) -> Pipeline:
    pipeline = Pipeline("counted", store=store)

    @pipeline.source(bounded=True)
    def history(spark: SparkSession) -> DataFrame:
        return spark.read.format("kinesis").options(**options).load()

    @pipeline.op(attributes=FULL_DAM)
    def counts(history: DataFrame) -> DataFrame:
        return history.groupBy("shardId").count()

    @pipeline.sink()
    def out(counts: DataFrame) -> Any:
        return counts.write.format("noop").mode("overwrite")

    return pipeline


def test_a_stage_over_a_bounded_read_is_used_again_until_its_end_moves(
    spark: SparkSession, make_stream: Callable[[int], Any], tmp_path: Path
) -> None:
    """By sequence numbers and by a seam; a read up to now runs each time."""
    source = make_stream(1)
    source.put(20)
    shard, numbers = "shardId-000000000000", [number for _, number in source.put_keys]

    def state(**options: str) -> tuple[StageState, int | None]:
        run = counted(tmp_path / "store", source.options(**options)).run(spark)
        return run.states["counts"], run.progress[run.plan.stages[0].id].rows

    first, second = (json.dumps({shard: numbers[index]}) for index in (4, 9))
    assert state(endingPosition=first)[0] is StageState.FINISHED
    source.put(5)
    assert state(endingPosition=first)[0] is StageState.REUSED
    assert state(endingPosition=second)[0] is StageState.FINISHED
    seam = str(tmp_path / "seam.json")
    assert state(endingPosition=seam)[0] is StageState.FINISHED
    source.put(5)
    assert state(endingPosition=seam)[0] is StageState.REUSED
    assert [state()[0] for _ in range(2)] == [StageState.FINISHED] * 2


def test_facts_have_a_fingerprint_and_moments_have_none(make_stream: Callable[[int], Any]) -> None:
    """Times that are over, sequence numbers, and a beginning at the stream's; not now, LATEST, or what is to come."""
    source = make_stream(1)

    def of(**options: str) -> tuple[str, ...] | None:
        return bounded_read(source.options(**options))

    until = {"endingPosition": PAST}
    facts = [
        of(**until),
        of(endingPosition="2024-11-02T00:00:00Z"),
        of(**until, initialPosition=f"AT_TIMESTAMP {PAST}"),
        of(**until, initialPosition=json.dumps({"shardId-000000000000": "12"})),
        of(endingPosition=json.dumps({"shardId-000000000000": "13"})),
    ]
    assert None not in facts
    assert len(set(facts)) == len(facts)
    assert of(**until, initialPosition="TRIM_HORIZON", maxPartitions="3") == facts[0]
    shard_end = {"version": 1, "streams": {source.name: {"shardId-000000000000": {"type": "SHARD_END"}}}}
    moments = [
        of(),
        of(endingPosition="now"),
        of(**until, initialPosition="LATEST"),
        of(endingPosition=(datetime.now(UTC) + timedelta(minutes=1)).isoformat()),
        of(endingPosition=json.dumps(shard_end)),
    ]
    assert moments == [None] * len(moments)


@pytest.mark.parametrize("ahead_seconds", [-3600, 3600])
def test_what_is_over_is_decided_by_the_services_clock(ahead_seconds: int) -> None:
    """A time that is over here may be to come there, and then records are missing that will be there."""
    with running_emulator(clock=OtherClock(ahead_seconds)) as emulator:
        client: Any = emulator.client()
        client.create_stream(StreamName="other", ShardCount=1)
        options = endpoint_options(emulator.endpoint_url, "other")
        there = datetime.now(UTC) + timedelta(seconds=ahead_seconds)

        def of(seconds: int) -> tuple[str, ...] | None:
            return bounded_read({**options, "endingPosition": (there + timedelta(seconds=seconds)).isoformat()})

        assert of(-60) is not None
        assert of(60) is None


def test_a_stream_that_was_made_again_is_another(make_stream: Callable[[int], Any], until: Callable[..., None]) -> None:
    """It has the name and the ARN of the one before, and other records."""
    source = make_stream(1)
    before = bounded_read(source.options(endingPosition=PAST))
    assert bounded_read(source.options(endingPosition=PAST)) == before
    summary = source.client.describe_stream_summary(StreamName=source.name)["StreamDescriptionSummary"]
    created = summary["StreamCreationTimestamp"]
    source.client.delete_stream(StreamName=source.name)

    def is_gone() -> bool:
        return source.name not in source.client.list_streams()["StreamNames"]

    until(is_gone, "the stream is not deleted")
    # The service tells the second in which a stream was made.
    until(lambda: time.time() >= created.timestamp() + 1, "the clock stands still")
    source.client.create_stream(StreamName=source.name, ShardCount=1)
    until(
        lambda: bounded_read(source.options(endingPosition=PAST)) not in (None, before),
        "it looks like the one before",
    )


@pytest.mark.parametrize(
    "position",
    [
        {"flights": "TRIM_HORIZON", "trains": "latest"},
        {"flights": "TRIM_HORIZON", "trains": {"shardId-000000000000": "LATEST"}},
    ],
)
def test_a_read_that_begins_at_the_tip_of_one_of_its_streams_has_none(position: dict[str, Any]) -> None:
    """It gives other records each time it is planned; nothing has to be asked for that."""
    options = {"streamName": "flights,trains", "region": "us-east-1", "endingPosition": "2026-01-31T12:00:00Z"}
    assert bounded_read(options | {"initialPosition": json.dumps(position)}) is None
