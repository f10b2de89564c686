"""Graphs of pipelines, without Spark."""

import functools
from datetime import timedelta
from pathlib import Path
from typing import Any

from penstock.operator_attributes import TumblingWindows
from penstock.spark_plugin import Pipeline

HOURS = TumblingWindows(timedelta(hours=1))


def test_features_built_on_features_are_planned_at_once(tmp_path: Path) -> None:
    """Each step reads the one before in two ways: the ways double with each, the graph does not."""
    pipeline = Pipeline("features", store=tmp_path)
    pipeline.source(bounded=True, name="step-0")(lambda spark: spark)
    for number in range(60):
        step = pipeline.stream(f"step-{number}")
        totals = step.key_by("k").window(HOURS, time="at").aggregate("sum(v) as v", name=f"totals-{number}")
        step.transform(lambda one, other: one, totals, name=f"step-{number + 1}")
    plan = pipeline.compile()
    assert all(stage.bounded for stage in plan.stages)
    assert len([name for stage in plan.stages for name in stage.batch_vertices if name.startswith("totals")]) >= 60


def test_a_long_chain_is_planned(tmp_path: Path) -> None:
    """Longer than Python lets functions call each other; windows over what never ends do not wait for it."""
    pipeline = Pipeline("chain", store=tmp_path)
    for name, bounded in (("history", True), ("live", False)):
        stream = pipeline.read(name, format="rate", bounded=bounded)
        for number in range(1500):
            stream = stream.transform(lambda frame: frame, name=f"{name}-{number}")
        stream.key_by("k").window(HOURS, time="at", watermark="1 hour").aggregate("sum(v)", name=f"{name}-sum")
    graph = pipeline.graph()
    assert graph["history-sum"].full_dam
    assert not graph["live-sum"].full_dam


def test_an_operator_may_be_any_callable(tmp_path: Path) -> None:
    """A partial function, or an object: with a name it is one like others."""

    def scale(frame: Any, *, by: int) -> Any:
        return frame

    class Sum:
        def __call__(self, frame: Any) -> Any:
            return frame

    pipeline = Pipeline("callables", store=tmp_path)
    pipeline.source(bounded=True, name="frame")(lambda spark: spark)
    pipeline.op(name="scaled")(functools.partial(scale, by=2))
    pipeline.op(name="sum", inputs=["scaled"])(Sum())
    graph = pipeline.graph()
    assert "test_spark_pipeline_graph.py:" in graph["scaled"].call_site
    assert [stage.vertices for stage in pipeline.compile().stages] == [("frame", "scaled", "sum")]
