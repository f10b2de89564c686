"""Logs of processes of their own go to a receiver over a real socket: with trace ids, without secrets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.telemetry._log_secrets import LogRedaction
from penstock.telemetry._settings import TelemetrySettings
from penstock.telemetry.testing import OtlpReceiver, attributes_of, running_receiver

pytest.importorskip("opentelemetry.sdk._logs", reason="the SDK has no logs")

_CHILD = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PENSTOCK_", "AWS_"))}
# Only what is flushed arrives.
_SLOW = {"OTEL_BSP_SCHEDULE_DELAY": "600000", "OTEL_BLRP_SCHEDULE_DELAY": "600000"}
_CODE = """
import logging, os, sys
from opentelemetry import trace
from penstock.telemetry import configure
done = configure('testing')
log = logging.getLogger('penstock.test')
log.setLevel(logging.INFO)
"""


def run(code: str, receiver: OtlpReceiver, **others: str) -> subprocess.CompletedProcess[str]:
    logs = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_METRICS_EXPORTER": "none", **_SLOW}
    environment = _CHILD | logs | {"OTEL_LOGS_EXPORTER": "otlp"} | others
    started = [sys.executable, "-c", _CODE + code]
    done = subprocess.run(started, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def test_logs_leave_only_if_they_are_asked_for() -> None:
    """An endpoint sends spans and metrics; logs need their variable, and may go alone."""
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4317"}
    assert TelemetrySettings.from_environment(endpoint).logs == ()
    assert TelemetrySettings.from_environment({**endpoint, "OTEL_LOGS_EXPORTER": "none"}).logs == ()
    alone = TelemetrySettings.from_environment({"OTEL_LOGS_EXPORTER": "otlp, console"})
    assert alone.logs == ("otlp_proto_grpc", "console")
    assert alone.pushes
    with running_receiver() as receiver:
        run("log.warning('unseen')", receiver, OTEL_LOGS_EXPORTER="")
        assert receiver.log_texts() == []


def test_a_record_has_the_ids_of_its_span_and_says_where_it_is_from() -> None:
    """Severity, logger, place, extras and the process' name too; what is left is delivered at exit."""
    code = (
        "with trace.get_tracer('test').start_as_current_span('work'):\n"
        "    log.info('read %d records', 7, extra={'stream': 'flights', 'shards': ['a']})\n"
        "log.debug('not enabled')\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    log.exception('failed')\n"
        "print(done.describe())\n"
    )
    with running_receiver() as receiver:
        told = run(code, receiver, OTEL_SERVICE_NAME="flights").stdout
        assert f"logs to {receiver.endpoint} (otlp_proto_grpc)" in told
        (resource, span), *_ = receiver.spans
        found = {record.body.string_value: (of, name, record) for of, name, record in receiver.logs}
        assert "not enabled" not in found
        of_log, name, record = found["read 7 records"]
        assert (of_log["service.name"], name, record.severity_text) == ("flights", "penstock.test", "INFO")
        assert of_log["service.instance.id"] == resource["service.instance.id"]
        assert (record.trace_id, record.span_id) == (span.trace_id, span.span_id)
        assert span.start_time_unix_nano <= record.time_unix_nano <= span.end_time_unix_nano
        attributes = attributes_of(record.attributes)
        assert (attributes["stream"], attributes["shards"]) == ("flights", "['a']")
        assert attributes["code.line.number"] > 0
        of_error = attributes_of(found["failed"][2].attributes)
        assert (of_error["exception.type"], found["failed"][2].severity_text) == ("ZeroDivisionError", "ERROR")
        assert "1 / 0" in of_error["exception.stacktrace"] or "division by zero" in of_error["exception.stacktrace"]
        assert not found["failed"][2].trace_id.strip(b"\0")


def test_no_secret_leaves_in_a_log(tmp_path: Path) -> None:
    """Secrets of the environment, and text that looks like one, are in no text, attribute or exception."""
    headers = tmp_path / "headers"
    headers.write_text("authorization=Bearer%20hush-hush-1\n")
    code = (
        "log.warning('sent with hush-hush-1')\n"
        "log.warning('key %s', 'wJalrXUtnFEMI', extra={'note': 'wJalrXUtnFEMI', 'api_token': 5})\n"
        "log.warning('header', extra={'authorization': '5ecret6'})\n"
        "log.warning({'Authorization': 'AWS4-HMAC-SHA256 Credential=AKIA/x, Signature=5ecret1'})\n"
        "log.warning('http://user:5ecret2@host/ secret_access_key=5ecret3; session_token: \"5ecret4\"')\n"
        "try:\n    raise ValueError('password=5ecret5')\nexcept ValueError:\n    log.exception('token wJalrXUtnFEMI')\n"
    )
    with running_receiver(token="hush-hush-1") as receiver:
        run(
            code,
            receiver,
            AWS_SECRET_ACCESS_KEY="wJalrXUtnFEMI",
            PENSTOCK_OTLP_HEADERS_FILE=str(headers),
        )
        assert len(receiver.logs) == 6
        everything = "\n".join(str(record) for _, _, record in receiver.logs)
        for secret in ("hush-hush-1", "wJalrXUtnFEMI", "5ecret"):
            assert secret not in everything, secret
        assert "sent with ***" in receiver.log_texts()
        assert "key ***" in receiver.log_texts()
        assert "ValueError" in everything
        assert any(attributes_of(record.attributes).get("api_token") == "***" for _, _, record in receiver.logs)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("{'user': 'bob', 'password': 'correct horse'}", "{'user': 'bob', 'password': '***'}"),
        ("password='p,secret;x', port=1", "password='***', port=1"),
        ('{"token": "a\\"b c", "port": 1}', '{"token": "***", "port": 1}'),
        (r'"{\"token\": \"a\\\"b c\", \"port\": 1}"', r'"{\"token\": \"***\", \"port\": 1}"'),
        ("api_key: b'it is a', port=1", "api_key: b'***', port=1"),
        ("password = 'it is cut of", "password = '***"),
        ("password => hunter2 for bob", "password => *** for bob"),
        ("password=don't, port=1", "password=***, port=1"),
        ("password='' port=1", "password='' port=1"),
        ("db.password.value=a&port=1", "db.password.value=***&port=1"),
        ("Authorization: Digest name='a', response='b'\nport=1", "Authorization: ***\nport=1"),
        ("headers: x-team=hunter2, x-key=b\nport=1", "headers: ***\nport=1"),
        ("{'headers': {'x-team': 'hunter2'}}", "{'headers': ***}"),
        ('{"headers":{"x-team":"a"},"msg":"hello"}', '{"headers":***,"msg":"hello"}'),
        ("num_headers: 4 of 5", "num_headers: 4 of 5"),
        ('{"url":"https://host","email":"bob@x.com"}', '{"url":"https://host","email":"bob@x.com"}'),
        ("OTEL_EXPORTER_OTLP_HEADERS='x-team=a b' port=1", "OTEL_EXPORTER_OTLP_HEADERS='***' port=1"),
        ("postgres://u:p@ss@h/x?a=b@c and http://h:1/a@b", "postgres://***@h/x?a=b@c and http://h:1/a@b"),
        ("https://u:it's@h#a@b", "https://***@h#a@b"),
        ("headers_count=3 of 4, 2 tokens were read at 12:00", "headers_count=3 of 4, 2 tokens were read at 12:00"),
    ],
)
def test_a_secret_is_starred_to_its_end(text: str, redacted: str) -> None:
    """A quoted one up to the quote that closes it, headers to the end of the line, users of URLs up to the last `@`."""
    assert LogRedaction({}).text(text) == redacted
