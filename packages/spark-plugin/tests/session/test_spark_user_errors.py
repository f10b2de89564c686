"""What a user reads when a source fails: Spark shows the traceback of the source's process."""

import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from penstock.aws import AwsOptions
from penstock.efo_consumer._publish.diagnosis import _ADVICE
from penstock.efo_consumer.errors import DataLossError, ShardFailedError
from penstock.emulator.testing import RunningEmulator
from penstock.registration import (
    AcquireRequest,
    BlockingConsumerRegistry,
    Consumer,
    HolderWatch,
    Lease,
    LeaseMarks,
    LocalConsumerRegistry,
    StreamConsumerRegistrar,
)
from penstock.registration.testing import FakeKinesis, InMemoryLeaseStore, ManualClock
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader
from penstock.spark_plugin._reading.session import leases as leases_module
from penstock.spark_plugin._reading.session import waiting as waiting_module
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin._user_errors import for_users, remedy, with_remedies
from penstock.spark_plugin._writing._writer import KinesisBatchWriter
from penstock.spark_plugin.errors import InvalidOptionError
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


def test_a_remedy_is_of_what_is_missing() -> None:
    """A consumer that was deregistered, or an expired shard, is not a reason to look at the stream's name."""
    options = KinesisOptions.parse({"streamName": "flights", "region": "eu-west-1"}, environ={})
    code, shard_id = "ResourceNotFoundException", "shardId-000000000000"
    found = {
        what: remedy(
            ShardFailedError(stream="flights", shard_id=shard_id, code=code, reason=f"{code}: {what}"), options
        )
        or ""
        for what in ("Stream not found", *_ADVICE.values())
    }
    told_name = {what for what, words in found.items() if "check streamName, the region (eu-west-1)" in words}
    assert told_name == {"Stream not found", _ADVICE["stream"]}
    assert "start the query again" in found[_ADVICE["consumer"]]
    assert found[_ADVICE["shard"]] == ""


def test_an_error_without_a_remedy_leads_to_its_explanation() -> None:
    """By a command that knows it; an option that is wrong says itself what to do."""
    options = KinesisOptions.parse({"streamName": "flights", "region": "eu-west-1"}, environ={})
    loss = DataLossError(stream="flights", shard_id="shardId-000000000000", after="1", upto="9", reason="it expired")
    assert for_users(loss, options).__notes__ == ["more: penstock errors DataLossError (of the package penstock-cli)"]
    for_users(loss, options)
    assert len(loss.__notes__) == 1
    assert not hasattr(for_users(InvalidOptionError("retryPatience", "x", "a duration"), options), "__notes__")


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


def test_a_lease_that_is_taken_over_from_a_dead_process_is_not_reported_as_held(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, until: Callable[..., None]
) -> None:
    """It goes by the dead one's job until the query's own call gets it, which may take longer than the next look."""
    looks: list[str] = []

    class Watched(BlockingConsumerRegistry):
        def list_consumers(self, stream_name: str | None = None, *, with_state: bool = False) -> list[Consumer]:
            looks.append(str(stream_name))
            return super().list_consumers(stream_name, with_state=with_state)

    def registry() -> LocalConsumerRegistry:
        fake = FakeKinesis(streams=("s",))
        return LocalConsumerRegistry(StreamConsumerRegistrar(fake, sleep=ManualClock().sleep), InMemoryLeaseStore())

    marks = LeaseMarks(folder=tmp_path)
    request = AcquireRequest(stream_name="s", consumer_name="shared", job_id="mine", claim="mine/1")
    with Watched(registry) as leases:
        dead = leases.acquire(replace(request, job_id="dead", claim="mine/0"))
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            pool.submit(marks.hold, dead).result()
        with HolderWatch(leases, request, marks).looking(waiting_module.waiting(request)):
            until(lambda: "is dead" in caplog.text, "the lease is not taken over")
            taken = len(looks)
            until(lambda: len(looks) > taken + 3, "nobody looks again")
    assert "still waiting" not in caplog.text


def test_a_query_without_a_job_id_is_not_told_of_itself(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    """Its own lease is written down before Kinesis is asked for the consumer, which may take more than five seconds."""

    class Creating:
        """A registry whose consumer Kinesis is creating, until that was told."""

        def acquire(self, request: AcquireRequest) -> Lease:
            self.lease = Lease(
                stream_name=request.stream_name,
                consumer_name=request.consumer_name,
                job_id=request.job_id,
                consumer_arn="",
                fencing_token=1,
                time_to_live_seconds=30,
                registration_is_ours=True,
            )
            until(lambda: bool(caplog.records), "nothing is logged")
            return self.lease

        def list_consumers(self, stream_name: str) -> list[Consumer]:
            name = self.lease.consumer_name
            return [
                Consumer(
                    stream_name=stream_name,
                    consumer_name=name,
                    consumer_arn="",
                    registration_is_ours=True,
                    lease=self.lease,
                    age_seconds=0,
                )
            ]

        def keep(self, lease: Lease, on_lost: object, on_regained: object) -> None:
            """No heartbeats."""

    monkeypatch.setattr(waiting_module, "_LATE_SECONDS", 0.01)
    monkeypatch.setattr(leases_module, "open_query_registry", lambda *_: Creating())
    options = {"streamName": "s", "region": "eu-west-1", "recordPublisher": "efo", "efoConsumerName": "mine"}
    leases_module.QueryLeases(KinesisOptions.parse(options, environ={}), AwsOptions(region="eu-west-1"), "query-1")
    assert "consumer 'mine' of s: Kinesis is creating it" in caplog.text
    assert "held by" not in caplog.text


def test_what_is_asked_before_the_first_micro_batch_says_what_to_do(kinesis: RunningEmulator) -> None:
    """`Trigger.AvailableNow` is the first of all calls; sequence numbers have shards listed."""
    there = endpoint_options(kinesis.endpoint_url, "nowhere")
    named = there | {"initialPosition": '{"shardId-000000000000": "12"}'}
    for call in (
        KinesisStreamReader(KinesisOptions.parse(there, environ={})).prepareForTriggerAvailableNow,
        KinesisStreamReader(KinesisOptions.parse(named, environ={})).initialOffset,
    ):
        lines = shown(call).strip().splitlines()
        assert sum(line.startswith("Traceback") for line in lines) == 1
        assert len(lines) < 10
        assert "check streamName, the region (us-east-1)" in lines[-1]
