"""Processes that Spark starts are spared collections that find nothing; others are left as they are."""

import sys
from types import SimpleNamespace

import pytest

from penstock.spark_plugin import KinesisDataSource, _signals


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that everything was frozen."""
    found: list[int] = []
    monkeypatch.setattr(_signals, "_freezes_done", 0)
    monkeypatch.setattr("gc.freeze", lambda: found.append(1))
    return found


def make_some() -> None:
    for _ in range(5):
        KinesisDataSource({"streamName": "s", "region": "eu-west-1"})


def test_the_first_sources_of_a_worker_freeze_what_is_loaded(
    freezes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes are planned and committed in such processes, one after another; later ones load nothing new."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name="pyspark.daemon"))
    make_some()
    assert len(freezes) == 3


def test_a_querys_source_collects_seldom(freezes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps all that it knows of its shards for as long as it runs."""
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr("gc.set_threshold", lambda *thresholds: asked.append(thresholds))
    source = SimpleNamespace(name="pyspark.sql.streaming.python_streaming_source_runner")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", source)
    # Spark unpickles the data source there, and asks it for a reader.
    made = KinesisDataSource({"streamName": "s", "region": "eu-west-1"})
    schema = made.schema()
    asked.clear()
    made.streamReader(schema)
    assert asked == [(50_000, 10, 5)]
    assert freezes == []


@pytest.mark.parametrize("spec", [None, SimpleNamespace(name="pytest.__main__")])
def test_a_process_of_the_user_is_left_alone(spec: object, freezes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs and notebooks have garbage of their own."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    make_some()
    assert freezes == []
