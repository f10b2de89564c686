"""Processes of their own export to a receiver over a real socket: what the OpenTelemetry API finds is per process."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from penstock.telemetry.testing import OtlpReceiver, running_receiver, wait_until

_CHILD = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PENSTOCK_"))}
# What is far longer than a test takes: only what is flushed arrives.
_SLOW = {"OTEL_BSP_SCHEDULE_DELAY": "600000", "OTEL_METRIC_EXPORT_INTERVAL": "600000"}
_WORK = """
from opentelemetry import metrics, trace
def work(name):
    with trace.get_tracer("test").start_as_current_span(name):
        metrics.get_meter("test").create_counter("worked", "{piece}").add(1, {"by": name})
"""
_CONFIGURED = "from penstock.telemetry import configure\ndone = configure('testing')\n" + _WORK


def run(code: str, environment: dict[str, str], *, expect: int = 0) -> subprocess.CompletedProcess[str]:
    started = [sys.executable, "-c", code]
    done = subprocess.run(started, env=_CHILD | environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == expect, done.stderr
    return done


def to(receiver: OtlpReceiver, **others: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, **_SLOW, **others}


def test_a_process_delivers_what_is_left_when_it_exits() -> None:
    """Spans and metrics arrive with the name and the attributes that the variables give; also by sys.exit."""
    with running_receiver() as receiver:
        named = to(receiver, OTEL_SERVICE_NAME="flights", OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test")
        run(_CONFIGURED + "work('a'); import sys; sys.exit(0)", named)
        assert receiver.span_names() == {"a"}
        assert receiver.metric_names() == {"worked"}
        (resource, _), (of_metric, scope, _) = receiver.spans[0], receiver.metrics[0]
        assert (resource["service.name"], resource["deployment.environment"], scope) == ("flights", "test", "test")
        assert resource["service.instance.id"] == of_metric["service.instance.id"]


def test_a_process_without_code_of_ours_exports_by_entry_points() -> None:
    """As Spark's processes do: the API finds the providers by two variables alone."""
    providers = {"OTEL_PYTHON_TRACER_PROVIDER": "penstock", "OTEL_PYTHON_METER_PROVIDER": "penstock"}
    with running_receiver() as receiver:
        run(_WORK + "work('worker')", to(receiver, **providers))
        assert (receiver.span_names(), receiver.metric_names()) == ({"worker"}, {"worked"})
        run(_WORK + "work('off')", to(receiver, OTEL_SDK_DISABLED="true", **providers))
        run(_WORK + "work('nowhere')", providers)
        failed = run(_WORK + "work('wrong')", {"OTEL_TRACES_EXPORTER": "nonsense", **providers})
        assert "opentelemetry-exporter-nonsense" in failed.stderr
        assert failed.stderr.count("this process exports no telemetry") == 1
        assert receiver.span_names() == {"worker"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_that_is_told_to_end_delivers_first(number: signal.Signals) -> None:
    """It ends by the signal all the same; handlers that Spark's worker removes between tasks are restored."""
    code = _CONFIGURED + (
        "import signal, time\n"
        "for one in (signal.SIGTERM, signal.SIGHUP): signal.signal(one, signal.SIG_DFL)\n"
        "work('last'); print('ready', flush=True); time.sleep(60)"
    )
    with running_receiver() as receiver:
        started = [sys.executable, "-c", code]
        with subprocess.Popen(started, env=_CHILD | to(receiver), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(number)
            assert process.wait(30) == -number
        assert receiver.span_names() == {"last"}
        assert receiver.metric_names() == {"worked"}


def test_a_receiver_that_is_away_holds_nothing_up_and_is_told_once() -> None:
    """Work continues, the end waits no longer than its bound, and what comes later is delivered when it is back."""
    code = _CONFIGURED + (
        "import logging, sys, time\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stderr)\n"
        "began = time.monotonic()\n"
        "for _ in range(5000): work('lost')\n"
        "print('took', time.monotonic() - began, flush=True)\n"
        "sys.stdin.readline()\n"
        "while True:\n"
        "    work('found'); time.sleep(0.05)\n"
    )
    with running_receiver() as receiver:
        address, endpoint = receiver.address, receiver.endpoint
    away = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
    }
    started = [sys.executable, "-c", code]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(started, env=_CHILD | away, text=True, **pipes) as process, ExitStack() as ending:
        ending.callback(process.kill)  # it would outlive a test that fails
        assert process.stdin is not None
        assert process.stdout is not None
        assert float(process.stdout.readline().split()[1]) < 60  # not a second for each of them
        assert process.stderr is not None
        told = ""
        while "spans are not taken by" not in told:
            line = process.stderr.readline()
            assert line, told
            told += line
        with running_receiver(address=address) as receiver:
            process.stdin.write("\n")
            process.stdin.flush()
            receiver.wait_for(lambda: "found" in receiver.span_names(), "nothing comes", seconds=90)
            # With the next request the process knows that this one was taken.
            delivered = len(receiver.spans)
            receiver.wait_for(lambda: len(receiver.spans) > delivered, "nothing more comes")
        process.send_signal(signal.SIGTERM)
        told += process.communicate(timeout=60)[1]
    # Once for each time that it is away; on a busy machine a request of its own may run out of time meanwhile.
    away, back = told.count("spans are not taken by"), told.count("spans are delivered to")
    assert 1 <= back <= away <= back + 1
    assert "Transient error" not in told
    assert "Failed to export" not in told


def test_tls_and_a_token_are_as_the_variables_say(tmp_path: Path) -> None:
    """With them it arrives; without the token it is refused; another authority's certificate is not trusted."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    pem = certificate.private_key_pem.bytes(), b"".join(one.bytes() for one in certificate.cert_chain_pems)
    trusted, headers = tmp_path / "ca.pem", tmp_path / "headers"
    authority.cert_pem.write_to_path(str(trusted))
    headers.write_text("authorization=Bearer%20hush\n")
    with running_receiver(token="hush", certificate=pem) as receiver:
        secure = to(receiver, OTEL_EXPORTER_OTLP_CERTIFICATE=str(trusted), OTEL_EXPORTER_OTLP_TIMEOUT="2")
        run(_CONFIGURED + "work('token')", {**secure, "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20hush"})
        run(_CONFIGURED + "work('file')", {**secure, "PENSTOCK_OTLP_HEADERS_FILE": str(headers)})
        assert receiver.span_names() == {"token", "file"}
        refused = run(_CONFIGURED + "work('refused')", secure)
        assert receiver.refused
        assert "spans are not taken by https://localhost:" in refused.stderr
        trustme.CA().cert_pem.write_to_path(str(trusted))
        assert "hush" not in refused.stderr
        run(_CONFIGURED + "work('untrusted')", {**secure, "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20hush"})
        assert receiver.span_names() == {"token", "file"}


def test_spans_of_a_process_that_is_killed_are_away_before() -> None:
    """A child of Spark's delivers within a second or so, because it gets no notice before it is killed."""
    providers = {"OTEL_PYTHON_TRACER_PROVIDER": "penstock", "OTEL_PYTHON_METER_PROVIDER": "penstock"}
    with running_receiver() as receiver:
        environment = _CHILD | {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint} | providers
        code = _WORK + "work('task')\nimport time\ntime.sleep(60)"
        with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
            try:
                wait_until(lambda: "task" in receiver.span_names(), "the span does not come")
            finally:
                process.kill()
