import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packages.telemetry import generate_reference
from penstock.telemetry import TelemetryOptionError, reference
from penstock.telemetry.__main__ import main
from penstock.telemetry._settings import TelemetrySettings, endpoint_of
from penstock.telemetry._spark import executor_configuration, withheld

ROOT = Path(__file__).resolve().parents[3]
_ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"}


@pytest.mark.parametrize(
    ("environment", "traces", "metrics", "prometheus"),
    [
        ({}, (), (), None),
        (_ENDPOINT, ("otlp_proto_grpc",), ("otlp_proto_grpc",), None),
        ({**_ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, (), ("otlp_proto_grpc",), None),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:1"}, ("otlp_proto_grpc",), (), None),
        (
            {**_ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            ("otlp_proto_grpc",),
            ("otlp_proto_http",),
            None,
        ),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ("console", "otlp_proto_grpc"), (), None),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, (), (), ("127.0.0.1", 9464)),
        (
            {"OTEL_METRICS_EXPORTER": "otlp,prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": "0"},
            (),
            ("otlp_proto_grpc",),
            ("127.0.0.1", 0),
        ),
        ({**_ENDPOINT, "OTEL_SDK_DISABLED": "true"}, (), (), None),
    ],
)
def test_the_usual_variables_say_what_is_exported(
    environment: dict[str, str], traces: tuple[str, ...], metrics: tuple[str, ...], prometheus: tuple[str, int] | None
) -> None:
    """By their names in the specification; nothing is exported unless an exporter or an endpoint is given."""
    settings = TelemetrySettings.from_environment(environment)
    assert (settings.traces, settings.metrics, settings.prometheus) == (traces, metrics, prometheus)


@pytest.mark.parametrize(
    ("environment", "option"),
    [
        ({**_ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
        (
            {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": "ninety"},
            "OTEL_EXPORTER_PROMETHEUS_PORT",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1:4317"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({**_ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://[:"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_TRACES_EXPORTER": "prometheus"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_LOGS_EXPORTER": "otlp, prometheus"}, "OTEL_LOGS_EXPORTER"),
    ],
)
def test_a_variable_that_means_nothing_is_named(environment: dict[str, Any], option: str) -> None:
    """Before anything is made."""
    with pytest.raises(TelemetryOptionError, match=option) as refused:
        TelemetrySettings.from_environment(environment)
    assert refused.value.option == option


def test_executors_are_given_what_they_need_and_no_secret() -> None:
    """Spark shows its settings in its UI and its event log; pages for Prometheus are the driver's."""
    environment = {
        **_ENDPOINT,
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=hush",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://user:hush@collector/v1",
        "OTEL_METRICS_EXPORTER": "prometheus",
        "PENSTOCK_OTLP_HEADERS_FILE": "/etc/otlp/headers",
        "PENSTOCK_SPANS_PER_REQUEST": "true",
        "PENSTOCK_SINK_TOKEN": "hush",
        "HOME": "/root",
    }
    configuration = executor_configuration(environment, "flights")
    assert "hush" not in str(configuration)
    assert configuration["spark.executorEnv.OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
    assert configuration["spark.executorEnv.OTEL_PYTHON_TRACER_PROVIDER"] == "penstock"
    assert configuration["spark.executorEnv.OTEL_METRICS_EXPORTER"] == "none"
    assert configuration["spark.executorEnv.OTEL_SERVICE_NAME"] == "flights"
    assert configuration["spark.executorEnv.PENSTOCK_OTLP_HEADERS_FILE"] == "/etc/otlp/headers"
    assert configuration["spark.executorEnv.PENSTOCK_SPANS_PER_REQUEST"] == "true"
    assert "spark.executorEnv.HOME" not in configuration
    assert withheld(environment) == ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    assert endpoint_of(environment, "TRACES") == "https://collector/v1"


_DRIVER = """
import os
from penstock.telemetry import configure
class Builder:
    given = {}
    def config(self, key, value): self.given[key] = value; return self
done = configure("driver", spark=Builder())
again = configure("driver")
assert again.prometheus_address == done.prometheus_address
print(done.describe())
print(Builder.given["spark.executorEnv.OTEL_PYTHON_METER_PROVIDER"], os.environ["OTEL_PYTHON_TRACER_PROVIDER"])
"""


def test_configure_tells_what_it_did() -> None:
    """Where spans and metrics go, what executors were given, and what not and why."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://user:hush@127.0.0.1:9",
        "OTEL_METRICS_EXPORTER": "prometheus",
        "OTEL_EXPORTER_PROMETHEUS_PORT": "0",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert "spans to http://127.0.0.1:9 (otlp_proto_grpc)" in done.stdout
    assert "metrics to http://127.0.0.1:" in done.stdout
    assert "were not given OTEL_EXPORTER_OTLP_ENDPOINT" in done.stdout
    assert done.stdout.endswith("penstock penstock\n")
    assert "hush" not in done.stdout + done.stderr
    off = subprocess.run(
        [sys.executable, "-c", "from penstock.telemetry import configure; print(configure().describe())"],
        env={},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "telemetry is off: set OTEL_EXPORTER_OTLP_ENDPOINT" in off.stdout


def test_the_reference_is_what_the_packages_declare() -> None:
    """Each instrument and each span of the sources is in it, with a unit and a meaning."""
    advice = "run packages/telemetry/generate_reference.py"
    assert generate_reference.declaring_modules() == generate_reference.DECLARING, advice
    assert generate_reference.TARGET.read_text() == generate_reference.collect(), advice
    found = reference()
    named: list[Any] = [*found.spans, *found.metrics]
    assert all(one.meaning and one.package.startswith("penstock-") for one in named)
    assert all(one.unit for one in found.metrics)
    assert len(found.metrics) > 50


@pytest.mark.parametrize(
    "package", ["async-sink", "efo-consumer", "operator-attributes", "registration", "spark-plugin"]
)
def test_a_package_tells_its_own_metrics_and_spans(package: str) -> None:
    """Its README names each of those that the reference has of it."""
    text = (ROOT / "packages" / package / "README.md").read_text()
    found = reference()
    named: list[Any] = [*found.spans, *found.metrics]
    of_package = [one.name for one in named if one.package == f"penstock-{package}"]
    assert of_package
    assert [name for name in of_package if f"`{name}`" not in text] == []


def test_the_reference_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """As a table for people."""
    assert main([]) == 0
    assert "| `async_sink.submit` |" in capsys.readouterr().out


def test_executors_are_given_no_variable_that_is_named_after_a_secret() -> None:
    """Whatever an exporter calls it: only places of secrets go there, such as a file."""
    environment = {
        **_ENDPOINT,
        "OTEL_EXPORTER_OTLP_PROFILES_HEADERS": "authorization=hush",
        "OTEL_EXPORTER_JAEGER_PASSWORD": "hush",
        "OTEL_EXPORTER_VENDOR_API_KEY": "hush",
        "OTEL_EXPORTER_VENDOR_TOKEN": "hush",
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/etc/otlp/client.key",
        "OTEL_EXPORTER_VENDOR_TOKEN_FILE": "/etc/otlp/token",
    }
    configuration = executor_configuration(environment, "flights")
    assert "hush" not in str(configuration)
    assert configuration["spark.executorEnv.OTEL_EXPORTER_OTLP_CLIENT_KEY"] == "/etc/otlp/client.key"
    assert configuration["spark.executorEnv.OTEL_EXPORTER_VENDOR_TOKEN_FILE"] == "/etc/otlp/token"
    assert len(withheld(environment)) == 4


@pytest.mark.parametrize(
    "endpoint",
    [
        "user:hush@collector:4317",
        "http://user:a/hush@collector@b:1",
        "https://user:hush?@c",
        "http://collector/?key=hush",
    ],
)
def test_executors_are_given_no_endpoint_that_holds_a_secret(endpoint: str) -> None:
    """With or without a scheme; what is not an endpoint may hold an `@`."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_RESOURCE_ATTRIBUTES": "owner=flights@example.com"}
    configuration = executor_configuration(environment, "flights")
    assert "hush" not in str(configuration)
    assert configuration["spark.executorEnv.OTEL_RESOURCE_ATTRIBUTES"] == "owner=flights@example.com"
    assert withheld(environment) == ("OTEL_EXPORTER_OTLP_ENDPOINT",)


def test_headers_of_a_file_are_not_told_as_withheld(tmp_path: Path) -> None:
    """Executors read the same file: nothing is missing there."""
    headers = tmp_path / "headers"
    headers.write_text("authorization=Bearer%20hush\n")
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "PENSTOCK_OTLP_HEADERS_FILE": str(headers),
    }
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert "PENSTOCK_OTLP_HEADERS_FILE" in done.stdout
    assert "were not given" not in done.stdout
    assert "hush" not in done.stdout + done.stderr


def test_wrong_usage_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With code 2, as in the other commands; the usage may be a screenful."""
    with pytest.raises(SystemExit) as ended:
        main(["--yaml"])
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1)
    assert said.endswith("--yaml: see penstock telemetry --help\n")
