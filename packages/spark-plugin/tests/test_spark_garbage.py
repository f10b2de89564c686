"""What workers of Spark's daemon have loaded is kept out of its collections; other processes are left as they are."""

import sys
from types import SimpleNamespace

import pytest

from penstock.spark_plugin import KinesisDataSource, _garbage


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that everything was frozen."""
    found: list[int] = []
    monkeypatch.setattr(_garbage, "_freezes_done", 0)
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


@pytest.mark.parametrize("spec", [None, SimpleNamespace(name="pytest.__main__")])
def test_a_process_of_the_user_is_left_alone(spec: object, freezes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs and notebooks have garbage of their own."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    make_some()
    assert freezes == []
