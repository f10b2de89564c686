"""What a user reads when a source fails: Spark shows the traceback of the source's process."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from penstock.emulator.testing import RunningEmulator
from penstock.registration import (
    AcquireRequest,
    BlockingConsumerRegistry,
    HolderWatch,
    LeaseMarks,
    LocalConsumerRegistry,
    StreamConsumerRegistrar,
)
from penstock.registration.testing import FakeKinesis, InMemoryLeaseStore, ManualClock
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader
from penstock.spark_plugin._reading.session import leases as waiting_module
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin._user_errors import with_remedies
from penstock.spark_plugin._writing.writer import KinesisBatchWriter
from penstock.spark_plugin.testing import endpoint_options


def shown(call: object) -> str:
    """The text that Spark makes of an error."""
    try:
        call()  # type: ignore[operator]  # a method
    except Exception:
        return traceback.format_exc()
    pytest.fail("no error")


def planned(options: dict[str, str], *, stream: bool) -> str:
    parsed = KinesisOptions.parse(options, environ={})
    return shown(KinesisStreamReader(parsed).initialOffset if stream else KinesisBatchReader(parsed).partitions)


@pytest.mark.parametrize("stream", [False, True], ids=["read", "readStream"])
def test_an_error_is_short_and_says_what_to_do(
    kinesis: RunningEmulator, stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One traceback of few lines, its last lines our words: of the stream, the endpoint, TLS, and the region."""
    there = endpoint_options(kinesis.endpoint_url, "nowhere")
    secure = endpoint_options(kinesis.tls_endpoint_url, "nowhere")
    missing = str(tmp_path / "ca.pem")
    cases = [
        (there, "ResourceNotFound", "check streamName, the region (us-east-1)"),
        (there | {"endpointUrl": "http://127.0.0.1:9"}, "127.0.0.1:9", "check endpointUrl (http://127.0.0.1:9)"),
        (secure, "CERTIFICATE_VERIFY_FAILED", "by caBundle"),
        (secure | {"caBundle": missing}, "", f"a file that is not there: {missing}"),
    ]
    # A connection that fails is tried again for seconds: once is enough.
    for options, words, cure in cases if stream else cases[:1]:
        lines = planned(options, stream=stream).strip().splitlines()
        assert sum(line.startswith("Traceback") for line in lines) == 1
        assert len(lines) < 10
        assert words in "\n".join(lines)
        assert cure in lines[-1]
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", missing)
    without = {name: text for name, text in there.items() if name != "region"}
    assert "set AWS_REGION" in planned(without, stream=stream)


def test_a_write_to_nowhere_says_what_to_do(kinesis: RunningEmulator) -> None:
    """The error of a task, which Spark shows as it is."""
    parsed = KinesisOptions.parse(endpoint_options(kinesis.endpoint_url, "nowhere", maxAttempts="1"), environ={})
    schema = StructType().add("data", BinaryType()).add("partitionKey", StringType())
    batch = pa.RecordBatch.from_pydict({"data": [b"x"], "partitionKey": ["k"]})
    lines = shown(lambda: KinesisBatchWriter(parsed, schema).write(iter([batch]))).strip().splitlines()
    assert len(lines) < 15
    assert "ResourceNotFound" in lines[-2]
    assert "check streamName" in lines[-1]


def test_what_is_not_understood_is_shown_in_full() -> None:
    """An error of none of our packages keeps its frames and its cause."""

    class Reader:
        _options = KinesisOptions.parse({"streamName": "s", "region": "eu-west-1"}, environ={})

        @with_remedies
        def fail(self) -> None:
            self.deeper()

        def deeper(self) -> None:
            raise ValueError("a bug") from KeyError("its cause")

    text = shown(Reader().fail)
    assert "in deeper" in text
    assert "its cause" in text


def test_a_query_that_waits_for_its_consumer_says_why(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, until: Callable[..., None]
) -> None:
    """Nothing else is seen of it, for minutes where another query lives that has the name."""
    request = AcquireRequest(stream_name="s", consumer_name="shared", job_id="mine")

    def registry() -> LocalConsumerRegistry:
        fake = FakeKinesis(streams=("s",))
        return LocalConsumerRegistry(StreamConsumerRegistrar(fake, sleep=ManualClock().sleep), InMemoryLeaseStore())

    marks = LeaseMarks(folder=tmp_path)
    with BlockingConsumerRegistry(registry) as leases:
        monkeypatch.setattr(waiting_module, "_LATE_SECONDS", 0.01)
        with HolderWatch(leases, request, marks).looking(waiting_module.waiting(request)):
            until(lambda: bool(caplog.records), "nothing is logged")
        assert "consumer 'shared' of s: Kinesis is creating it" in caplog.text
        caplog.clear()
        leases.acquire(AcquireRequest(stream_name="s", consumer_name="shared", job_id="the-other"))
        with HolderWatch(leases, request, marks).looking(waiting_module.waiting(request)):
            until(lambda: bool(caplog.records), "nothing is logged")
    assert "consumer 'shared' of s: it is held by job 'the-other'" in caplog.text
    assert "give this query an efoConsumerName of its own" in caplog.text
