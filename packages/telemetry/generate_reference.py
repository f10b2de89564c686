"""Collects the names of all spans and metrics from the packages into `reference.json`.

Metrics are recorded by a provider while the packages' instruments are made. Spans are found in the sources: their
names are constants there. Run it after a change of either: `python packages/telemetry/generate_reference.py`.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "packages/telemetry/src/penstock/telemetry/reference.json"
_MEANINGS = {
    "async_sink.submit": "a request to the destination, or a second's requests of one caller that went well, child of "
    "what wrote the first entry; links to the others",
    "demo": "a whole run of the demo",
    "demo.produce": "the demo's producer, from the first flight to the last",
    "efo_consumer.read_range": "an exact range that is handed out, from memory, disk or Kinesis",
    "efo_consumer.subscribe": "a SubscribeToShard call, from its begin to its end after five minutes at most",
    "operator_attributes.compile": "a job graph that is cut into stages",
    "registration.register": "a stream consumer that is registered, or found, until it is ACTIVE",
    "spark_plugin.plan_batch": "a micro-batch's ranges, from the arrival of the first record to their plan",
    "spark_plugin.read_partition": "a task that reads its part of a micro-batch",
    "spark_plugin.stage": "a stage of a pipeline, from its deployment to its end",
    "spark_plugin.start_query": "the start of a query: registration, subscriptions, positions",
    "spark_plugin.write_partition": "a task that writes its part, until all is acknowledged",
}
_RECORD = """
import json
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

found = []

class Meter(metrics.NoOpMeter):
    pass

def recorder(kind, make):
    def create(self, name, *args, **kwargs):
        places = ("callbacks", "unit", "description") if "observable" in make else ("unit", "description")
        given = {**dict(zip(places, args)), **kwargs}
        found.append({"instrumentation": self.name, "name": name, "kind": kind, "unit": given.get("unit", ""),
                      "meaning": given.get("description", "")})
        return getattr(metrics.NoOpMeter, make)(self, name, *args, **kwargs)
    return create

for kind in ("counter", "gauge", "up_down_counter", "histogram"):
    for make in (f"create_{kind}", f"create_observable_{kind}"):
        if hasattr(metrics.NoOpMeter, make):
            setattr(Meter, make, recorder(kind.replace("up_down_counter", "gauge"), make))

class Provider(metrics.MeterProvider):
    def get_meter(self, name, *args, **kwargs):
        return Meter(name)

metrics.set_meter_provider(Provider())

import penstock.efo_consumer._continuity.guard
import penstock.rpc._server.audit
import penstock.rpc._security.principals
import penstock.rpc._security.token_file
from penstock.async_sink._spans import SinkTelemetry
from penstock.efo_consumer._publish.metrics import PublisherMetrics
from penstock.operator_attributes._schedule.states import DRIVER, SERVICE, StageMetrics
from penstock.registration._local.registry import SweepMetrics
from penstock.spark_plugin._reading.progress_listener import ProgressMetrics
from penstock.spark_plugin._reading.reader_numbers import QueryMetrics

_ = penstock.efo_consumer, penstock.rpc

class Sink:
    def gauges(self):
        raise NotImplementedError

sink = Sink()
SinkTelemetry("", gauges=sink.gauges)
PublisherMetrics(), SweepMetrics(), StageMetrics(DRIVER), StageMetrics(SERVICE), QueryMetrics(), ProgressMetrics()
print(json.dumps(found))
"""
_SPANS = ("start_span", "start_as_current_span")
_INSTRUMENTS = (
    "create_counter",
    "create_gauge",
    "create_up_down_counter",
    "create_histogram",
    "create_observable_counter",
    "create_observable_gauge",
    "create_observable_up_down_counter",
)
DECLARING = {
    "async_sink/_metrics.py",
    "efo_consumer/_publish/metrics.py",
    "efo_consumer/_continuity/guard.py",
    "operator_attributes/_schedule/states.py",
    "registration/_local/registry.py",
    "rpc/_server/audit.py",
    "rpc/_security/principals.py",
    "rpc/_security/token_file.py",
    "spark_plugin/_reading/progress_listener.py",
    "spark_plugin/_reading/reader_numbers.py",
}
"""Modules with instruments, all of which `_RECORD` makes."""


def collect() -> str:
    """The reference, as JSON."""
    recorded = subprocess.run([sys.executable, "-c", _RECORD], check=True, capture_output=True, text=True).stdout
    metrics = [
        {**one, "package": _package(one["instrumentation"]), "prometheus": prometheus_name(one)}
        for one in json.loads(recorded)
    ]
    spans = [
        {
            "name": name,
            "kind": kind,
            "meaning": _MEANINGS[name],
            "package": _package(instrumentation),
            "instrumentation": instrumentation,
        }
        for name, kind, instrumentation in sorted(_spans())
    ]
    metrics.sort(key=lambda one: (one["instrumentation"], one["name"]))
    return json.dumps({"spans": spans, "metrics": metrics}, indent=1, ensure_ascii=False) + "\n"


def prometheus_name(metric: dict[str, str]) -> str:
    """As the exporter for Prometheus, and the collector, write it; the SDK for Python writes names in lower case."""
    units = {"ms": "milliseconds", "s": "seconds", "By": "bytes"}
    name, unit = metric["name"].lower(), units.get(metric["unit"], "")
    name = f"{name}_{unit}" if unit and not name.endswith(f"_{unit}") else name
    return f"{name}_total" if metric["kind"] == "counter" else name


def declaring_modules() -> set[str]:
    """The modules that make instruments, by their place below `penstock`."""
    return {
        "/".join(file.relative_to(ROOT).parts).partition("/penstock/")[2]
        for file in _sources()
        if any(f"{one}(" in file.read_text(encoding="utf-8") for one in _INSTRUMENTS)
    }


def _sources() -> list[Path]:
    found = [path for folder in ("packages", "services") for path in (ROOT / folder).glob("*/src/penstock/**/*.py")]
    return [path for path in found if path.relative_to(ROOT).parts[1] not in ("telemetry", "proto")]


def _package(instrumentation: str) -> str:
    return "-".join(instrumentation.split(".")[:2]).replace("_", "-")


def _spans() -> set[tuple[str, str, str]]:
    found = set()
    for file in _sources():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        constants = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        # Below the repository, whose own folder may have the name, too.
        place = file.relative_to(ROOT).parts
        place = place[place.index("penstock") :]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SPANS:
                first = node.args[0]
                name = first.value if isinstance(first, ast.Constant) else constants.get(getattr(first, "id", ""), "?")
                kind = "client" if any(one.arg == "kind" for one in node.keywords) else "internal"
                found.add((str(name), kind, ".".join(place[:2])))
    return found


def main() -> int:
    """Write the reference, or check whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when it is out of date")
    arguments = parser.parse_args()
    text = collect()
    if arguments.check:
        return int(not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
