import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.emulator.testing import running_emulator

ROWS = 3_000

FanOut = tuple[dict[str, Any], str, Path]


def start_demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock.demo", "--folder", str(folder), "--rows", str(ROWS), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder.parent)


def finish(process: subprocess.Popen[str], folder: Path) -> tuple[dict[str, Any], str]:
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output + "".join(
        log.read_text()[-3_000:] for log in (folder / "logs").glob("*.log")
    )
    return json.loads((folder / "report.json").read_text()), output


def assert_exact(report: dict[str, Any]) -> None:
    comparison = report["comparison"]
    assert (report["accepted"], report["read"]) == (ROWS, ROWS)
    assert comparison["expected"] > 500
    assert comparison["missing"] == comparison["wrong"] == comparison["unexpected"] == 0
    assert report["split_shard"] is not None


@pytest.fixture(scope="module")
def fan_out(tmp_path_factory: pytest.TempPathFactory) -> FanOut:
    folder = tmp_path_factory.mktemp("demo") / "results"
    report, output = finish(start_demo(folder), folder)
    return report, output, folder


def test_the_demo_loses_and_duplicates_nothing(fan_out: FanOut) -> None:
    """Every delayed flight arrives with its weather, though a shard is split under load."""
    report, output, _ = fan_out
    assert_exact(report)
    assert report["comparison"]["duplicated"] == 0
    assert "complete" in output
    assert report["trace_id"] in output


def test_the_blocking_stage_is_finished_before_the_live_one_starts(fan_out: FanOut) -> None:
    """The weather is committed first; the plan shows the blocking edge."""
    report, _, folder = fan_out
    assert [stage["name"] for stage in report["stages"]] == ["daily_weather", "delays_stream"]
    assert report["stages"][0]["state"] == "finished"
    assert "==>|blocking|" in (folder / "plan.mmd").read_text()
    spans = read_spans(folder)
    stage = next(one for one in spans if one["attributes"].get("penstock.stage.name") == "daily_weather")
    first_read = min(one["start_time"] for one in spans if one["name"] == "spark_plugin.start_query")
    assert stage["end_time"] <= first_read


def test_only_the_results_remain(fan_out: FanOut) -> None:
    """A picture, a plan, the spans, the report and the logs; no checkpoint, unless --keep asks for it."""
    _, _, folder = fan_out
    assert {path.name for path in folder.iterdir()} == {"latency.png", "plan.mmd", "spans.jsonl", "report.json", "logs"}
    assert (folder / "latency.png").read_bytes().startswith(b"\x89PNG")


def read_spans(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "spans.jsonl").read_text().splitlines()]


def ancestors(span: dict[str, Any], spans: dict[str, dict[str, Any]]) -> list[str]:
    names = []
    parent = spans.get(span["parent_id"])
    while parent is not None:
        names.append(parent["name"].rpartition("/")[2])
        parent = spans.get(parent["parent_id"])
    return names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("registration.register", ["spark_plugin.start_query", "demo"]),
        ("efo_consumer.subscribe", ["spark_plugin.start_query", "demo"]),
        ("spark_plugin.plan_batch", ["demo"]),
        ("spark_plugin.read_partition", ["spark_plugin.plan_batch", "demo"]),
        (
            "efo_consumer.read_range",
            ["ReadRange", "ReadRange", "spark_plugin.read_partition", "spark_plugin.plan_batch", "demo"],
        ),
        ("operator_attributes.compile", ["demo"]),
        ("spark_plugin.stage", ["demo"]),
        ("demo.produce", ["demo"]),
    ],
)
def test_one_trace_leads_through_grpc_and_spark(fan_out: FanOut, name: str, expected: list[str]) -> None:
    """Each span's parents are those that caused it, across processes, up to the root of the one trace."""
    report, _, folder = fan_out
    spans = read_spans(folder)
    assert {span["context"]["trace_id"] for span in spans} == {"0x" + report["trace_id"]}
    by_id = {span["context"]["span_id"]: span for span in spans}
    found = [span for span in spans if span["name"] == name]
    assert found
    for span in found:
        assert ancestors(span, by_id) == expected


def test_writes_belong_to_the_stage_or_the_producer_that_caused_them(fan_out: FanOut) -> None:
    """A submit of the sink is a child of the write task of the live stage, or of the producer."""
    _, _, folder = fan_out
    spans = read_spans(folder)
    by_id = {span["context"]["span_id"]: span for span in spans}
    paths = {tuple(ancestors(span, by_id)) for span in spans if span["name"] == "async_sink.submit"}
    assert paths == {("demo.produce", "demo"), ("spark_plugin.write_partition", "spark_plugin.stage", "demo")}


def test_a_range_crosses_processes(fan_out: FanOut) -> None:
    """The task that asks and the reader that answers are different processes of one trace."""
    _, _, folder = fan_out
    spans = {span["context"]["span_id"]: span for span in read_spans(folder)}
    served = [span for span in spans.values() if span["name"] == "efo_consumer.read_range"]
    for span in served:
        asked = spans[spans[span["parent_id"]]["parent_id"]]
        assert asked["resource"]["attributes"]["process.pid"] != span["resource"]["attributes"]["process.pid"]


def test_a_driver_that_is_killed_halfway_resumes_without_a_row_lost_or_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of the Spark driver: the next one resumes from its checkpoint, and reuses the committed stage.

    It reads another Kinesis, by --endpoint-url: the streams get names of their own there, and are gone at the end. With
    --services the registry registers the stream consumer, and the reader of another process serves both drivers.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    folder = tmp_path / "results"
    with running_emulator(tls=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=1)
        arguments = ["--endpoint-url", emulator.endpoint_url, "--kill-driver", "--services", "--rate", "1000"]
        report, output = finish(start_demo(folder, *arguments), folder)
        assert_exact(report)
        assert client.list_streams()["StreamNames"] == ["flights"]
    assert report["driver_starts"] == 2
    assert "killed by signal 9" in output
    assert (folder / "run" / "counts.sqlite").exists()
    spans = {span["context"]["span_id"]: span for span in read_spans(folder)}
    registered = [span for span in spans.values() if span["name"] == "registration.register"]
    assert registered
    assert all("Acquire" in spans[span["parent_id"]]["name"] for span in registered)


def test_ctrl_c_in_the_middle_leaves_nothing_running(tmp_path: Path) -> None:
    """Every process that the demo started is gone, its services and the JVM included, with rows read by polling."""
    process = start_demo(tmp_path / "results", "--services", "--polling", "--rate", "50")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("put ") and not line.endswith("read 0\n"):
            break
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) >= 6
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    _, left = psutil.wait_procs(below, timeout=30)
    assert left == []
