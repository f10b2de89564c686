from pathlib import Path
from typing import Any

import pytest

from packages.telemetry import generate_reference
from penstock.telemetry import TelemetryOptionError, reference
from penstock.telemetry.__main__ import main
from penstock.telemetry._configure import executor_configuration, withheld
from penstock.telemetry._settings import TelemetrySettings, endpoint_of

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


def test_wrong_usage_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With code 2, as in the other commands; the usage may be a screenful."""
    with pytest.raises(SystemExit) as ended:
        main(["--yaml"])
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1)
    assert said.endswith("--yaml: see penstock telemetry --help\n")
