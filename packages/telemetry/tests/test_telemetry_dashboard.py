import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock.emulator.testing import running_emulator
from penstock.operator_attributes import Boundedness, JobGraph, StageStarted, open_stage_scheduler
from penstock.rpc.testing import service_process
from penstock.telemetry import reference
from penstock.telemetry.testing import wait_until

HERE = Path(__file__).parent
PACKAGE = HERE.parent
_STAGES = "penstock.services.stage_scheduler"
_ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PENSTOCK_"))},
    "OTEL_METRICS_EXPORTER": "prometheus",
    "OTEL_EXPORTER_PROMETHEUS_PORT": "0",
}

_TOKENS = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<duration>\[[^\]]*\])
    |(?P<number>0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?(?:ms|[smhdwy])?)
    |(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    |(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},@])""",
    re.VERBOSE,
)
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
_GROUPS = {"by", "without", "on", "ignoring", "group_left", "group_right"}


def parse_promql(expression: str) -> tuple[set[str], set[str]]:
    """The metrics that an expression names, and the labels that it matches or groups by.

    Raises:
        ValueError: the expression is not PromQL, or its brackets do not match.
    """
    tokens = []
    place = 0
    while place < len(expression):
        found = _TOKENS.match(expression, place)
        if found is None:
            raise ValueError(f"not PromQL at {expression[place : place + 20]!r}")
        if found.lastgroup != "space":
            tokens.append((found.lastgroup, found.group()))
        place = found.end()
    metrics: set[str] = set()
    labels: set[str] = set()
    closing: list[str] = []
    grouping = False
    for number, (kind, text) in enumerate(tokens):
        following = tokens[number + 1][1] if number + 1 < len(tokens) else ""
        if text in "({":
            is_labels = text == "{" or (number > 0 and tokens[number - 1][1] in _GROUPS)
            closing.append("}" if text == "{" else ")")
            grouping = is_labels or grouping
        elif text in ")}":
            if not closing or closing.pop() != text:
                raise ValueError(f"{text!r} without its opening in {expression!r}")
            grouping = False
        elif kind == "name" and grouping:
            labels.add(text)
        elif kind == "name" and text not in _WORDS | _GROUPS and following not in ("(", "by", "without"):
            # A name before a bracket, or before its groups, is a function or an aggregation.
            metrics.add(text)
    if closing:
        raise ValueError(f"{closing[-1]!r} is missing in {expression!r}")
    return metrics, labels


def scrape(address: str) -> dict[str, set[str]]:
    """Labels of each series that a page has, by name."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def exposition(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """What a process with a reader, a writer, a registry, a job and a query shows to Prometheus."""
    with running_emulator() as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=1)
        summary = client.describe_stream_summary
        wait_until(
            lambda: summary(StreamName="flights")["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE",
            "the stream is not ACTIVE",
        )
        client.put_record(StreamName="flights", Data=b"late", PartitionKey="1")
        command = [sys.executable, str(HERE / "metric_components.py"), emulator.endpoint_url]
        folder = str(tmp_path_factory.mktemp("components"))
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([*command, folder], env=_ENVIRONMENT, text=True, **pipes) as process:
            try:
                assert process.stdout is not None
                address = process.stdout.readline().strip()
                assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
                yield scrape(address)
            finally:
                process.kill()


def expressions() -> dict[str, str]:
    """Those of the dashboard and of the rules, by panel and alert."""
    dashboard = json.loads((PACKAGE / "grafana" / "penstock.json").read_text())
    found = {
        f"{panel['title']} {target['refId']} {panel['id']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    rules = yaml.safe_load((PACKAGE / "prometheus" / "alerts.yaml").read_text())
    return found | {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}


def test_every_metric_and_label_of_dashboard_and_alerts_exists(exposition: dict[str, set[str]]) -> None:
    """A panel for a metric that does not exist stays empty, and its alert never fires."""
    found = expressions()
    assert len(found) > 40
    of_target = {"job", "instance", "le"}
    for title, expression in found.items():
        metrics, labels = parse_promql(expression)
        assert metrics, title
        assert metrics <= set(exposition), title
        assert labels <= set().union(*(exposition[name] for name in metrics)) | of_target, title


def test_what_is_exposed_is_what_the_reference_says(exposition: dict[str, set[str]]) -> None:
    """Under their names for Prometheus, for the metrics that these components emit."""
    known = {one.prometheus for one in reference().metrics}
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exposition}
    ours = {name for name in shown if "otel_scope_name" in exposition.get(name, exposition.get(name + "_sum", set()))}
    assert ours == known


def test_a_service_shows_its_metrics_on_loopback(tmp_path: Path) -> None:
    """On a port that the system picks, and that it tells; it ends as cleanly as without."""
    errors = tmp_path / "errors"
    graph = JobGraph("nightly")
    graph.add_source("history", boundedness=Boundedness.BOUNDED)
    graph.add_sink("copy", "history")
    with errors.open("wb") as file, service_process(_STAGES, ["serve"], _ENVIRONMENT, file) as service:
        with open_stage_scheduler(service.address) as scheduler:
            (stage,) = scheduler.submit("nightly", graph).stages
            scheduler.report("nightly", StageStarted(stage_id=stage.stage_id, at=0.0))
        told = re.search(r"metrics at http://(127\.0\.0\.1:\d+)/metrics", errors.read_text())
        assert told
        shown = scrape(told[1])
        assert {"penstock_job_name", "event"} <= shown["stageevents_total"]
        assert {"service_name", "service_instance_id"} <= shown["target_info"]
        assert service.terminate() == 0
