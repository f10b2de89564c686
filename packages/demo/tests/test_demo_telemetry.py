import json
import os
from multiprocessing import get_context
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider

from penstock.demo._telemetry import FOLDER_VARIABLE, create_tracer_provider, merge_spans


def _child(provider: TracerProvider) -> None:
    with provider.get_tracer("test").start_as_current_span("in the child"):
        pass
    os._exit(0)


def test_each_process_writes_its_own_file_also_after_a_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark forks its workers after the provider may have been made."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "spans"))
    provider = create_tracer_provider()
    with provider.get_tracer("test").start_as_current_span("in the parent"):
        child = get_context("fork").Process(target=_child, args=(provider,))
        child.start()
        child.join()
    (tmp_path / "spans" / "spans-1.jsonl").write_text('{"name": "half a li')
    assert merge_spans(tmp_path / "spans", tmp_path / "all.jsonl") == 2
    spans = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert {span["name"] for span in spans} == {"in the parent", "in the child"}
    assert len({span["context"]["trace_id"] for span in spans}) == 1
    assert len(list((tmp_path / "spans").glob("*.jsonl"))) == 3
