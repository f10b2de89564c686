"""The writer alone decides how long a request may take and whether it is sent again; no layer below it does."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sink_scripted_service import Body, ScriptedService, hang_up, success

from penstock.async_sink import (
    AsyncSinkConfig,
    DynamoDbRequestEntry,
    DynamoDbSink,
    FirehoseRequestEntry,
    FirehoseSink,
    KinesisRequestEntry,
    KinesisStreamsSink,
    SqsRequestEntry,
    SqsSink,
    dynamodb_config,
    firehose_config,
    sqs_config,
)
from penstock.async_sink._destinations import aws as destinations
from penstock.async_sink.errors import DestinationError, RecordsRejectedError, SinkError
from penstock.async_sink.testing import wait_until
from penstock.aws import AwsOptions, AwsSession, JsonClient
from penstock.aws.testing import emulator_options, running_sts

SERVICES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "kinesis": (partial(KinesisStreamsSink, stream_name="s"), AsyncSinkConfig, KinesisRequestEntry(b"x", "k")),
    "firehose": (partial(FirehoseSink, delivery_stream_name="s"), firehose_config, FirehoseRequestEntry(b"x")),
    "dynamodb": (
        partial(DynamoDbSink, table_name="s", key_names=["id"]),
        dynamodb_config,
        DynamoDbRequestEntry.put({"id": 1}),
    ),
    "sqs": (partial(SqsSink, queue_url="https://sqs/1/s"), sqs_config, SqsRequestEntry("x")),
}
EVERY_SERVICE = pytest.mark.parametrize("service_name", list(SERVICES))


def sink_of(service_name: str, aws: AwsOptions | AwsSession, **options: Any) -> tuple[Any, Any]:
    """A sink, and an entry for it."""
    make, config, entry = SERVICES[service_name]
    return make(aws=aws, config=config(retry_backoff_base=timedelta(milliseconds=1), **options)), entry


@EVERY_SERVICE
async def test_a_request_may_take_longer_than_any_time_out_of_the_client(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch, service_name: str
) -> None:
    """The service has the request once, however late it answers."""
    monkeypatch.setattr(destinations, "JsonClient", partial(JsonClient, total_timeout_seconds=0.01))
    service.delay = 0.2
    sink, entry = sink_of(service_name, emulator_options(service.url))
    async with sink.create_writer() as writer:
        await writer.write(entry)
        await writer.flush(end_of_input=True)
        assert (writer.metrics.records_out, writer.metrics.timed_out) == (1, 0)
    assert len(service.requests) == 1


@EVERY_SERVICE
async def test_the_request_timeout_of_the_writer_binds(service: ScriptedService, service_name: str) -> None:
    """It ends the call, and is counted as a time-out."""
    service.delay = 60.0
    sink, entry = sink_of(
        service_name, emulator_options(service.url), request_timeout=timedelta(seconds=0.2), fail_on_timeout=True
    )
    async with sink.create_writer() as writer:
        await writer.write(entry)
        with pytest.raises(SinkError) as caught:
            await writer.flush(end_of_input=True)
        assert caught.value.code == "REQUEST_TIMED_OUT"
        assert writer.metrics.timed_out == 1
    assert len(service.requests) == 1


@EVERY_SERVICE
async def test_a_request_whose_kept_connection_breaks_is_a_failed_attempt(
    service: ScriptedService, service_name: str
) -> None:
    """The writer sends it again, and counts as many requests as the service has seen."""
    sink, entry = sink_of(service_name, emulator_options(service.url), max_in_flight_requests=1)
    async with sink.create_writer() as writer:
        await writer.write(entry)
        await writer.flush(end_of_input=True)
        service.script = [hang_up]
        await writer.write(entry)
        await writer.flush(end_of_input=True)
        assert (writer.metrics.records_out, writer.metrics.retried) == (2, 1)
        assert writer.metrics.requests == len(service.requests) == 3


@EVERY_SERVICE
async def test_max_attempts_bounds_what_the_service_sees(service: ScriptedService, service_name: str) -> None:
    """With one attempt an entry is sent once, whatever becomes of its connection."""
    sink, entry = sink_of(service_name, emulator_options(service.url), max_attempts=1, max_in_flight_requests=1)
    async with sink.create_writer() as writer:
        await writer.write(entry)
        await writer.flush(end_of_input=True)
        service.script = [hang_up]
        await writer.write(entry)
        with pytest.raises(RecordsRejectedError) as caught:
            await writer.flush(end_of_input=True)
        assert caught.value.records[0].attempts == 1
    assert len(service.requests) == 2


@EVERY_SERVICE
async def test_a_throttle_without_a_code_slows_the_writer(service: ScriptedService, service_name: str) -> None:
    """A proxy before the service throttles by HTTP 429 alone."""
    service.script = [lambda body: (429, "<html>Too many requests</html>")]
    sink, entry = sink_of(service_name, emulator_options(service.url))
    async with sink.create_writer() as writer:
        await writer.write(entry)
        await writer.flush(end_of_input=True)
        assert (writer.metrics.records_out, writer.metrics.throttled) == (1, 1)


@EVERY_SERVICE
async def test_html_ends_the_writer_with_the_endpoint(service: ScriptedService, service_name: str) -> None:
    """A captive portal or a web server at a wrong endpoint answers everything with HTTP 200."""
    service.script = [lambda body: (200, "<html>Log in</html>")]
    sink, entry = sink_of(service_name, emulator_options(service.url))
    async with sink.create_writer() as writer:
        await writer.write(entry)
        with pytest.raises(DestinationError) as caught:
            await writer.flush(end_of_input=True)
    assert caught.value.code == "UnreadableAnswer"
    assert service.url in caught.value.message
    assert "text/html" in caught.value.message


class Keys:
    """A shared credentials file with the profile `job`; the service refuses `AKIAOLD`."""

    def __init__(self, path: Path, service: ScriptedService) -> None:
        self._path = path
        self._service = service
        self.code = "ExpiredTokenException"
        self.refused = 0
        self.replace_after = 0
        """Refusals after which the file has other keys; 0 for never."""
        self.write("AKIAOLD")
        # The session's clock: five seconds pass from one look at it to the next.
        self.session = AwsSession(
            AwsOptions(region="us-east-1", endpoint_url=service.url, profile="job"), clock=count(0, 5).__next__
        )

    def write(self, access_key: str) -> None:
        self._path.write_text(f"[job]\naws_access_key_id = {access_key}\naws_secret_access_key = hush\n")

    def __call__(self, body: Body) -> tuple[int, Body]:
        if "Credential=AKIAOLD" not in self._service.headers[-1]["authorization"]:
            return success(self._service.headers[-1]["x-amz-target"])(body)
        self.refused += 1
        if self.refused == self.replace_after:
            self.write("AKIANEW")
        return 400, {"__type": self.code, "message": "the token is refused"}


@pytest.fixture
def keys(service: ScriptedService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Keys:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    keys = Keys(tmp_path / "credentials", service)
    service.script = [keys] * 1_000
    return keys


@EVERY_SERVICE
async def test_a_token_that_is_replaced_late_ends_no_writer(
    service: ScriptedService, keys: Keys, caplog: pytest.LogCaptureFixture, service_name: str
) -> None:
    """Refusals are logged and do not count as attempts; each request that the service sees is one of the writer's."""
    keys.replace_after = 4
    sink, entry = sink_of(service_name, keys.session, max_attempts=1)
    async with sink.create_writer() as writer:
        await writer.write(entry)
        await writer.flush(end_of_input=True)
        assert writer.metrics.records_out == 1
        assert writer.metrics.requests == len(service.requests) == 5
    assert [record.levelname for record in caplog.records if "ExpiredTokenException" in record.message] == ["WARNING"]


async def test_a_token_that_nothing_replaces_ends_the_writer_after_a_while(
    service: ScriptedService, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the service's code; the records stay in the snapshot."""
    monkeypatch.setattr(destinations, "_REFUSED_SECONDS", 0.05)
    sink, entry = sink_of("kinesis", keys.session)
    async with sink.create_writer() as writer:
        await writer.write(entry)
        with pytest.raises(DestinationError) as caught:
            await writer.flush(end_of_input=True)
        assert caught.value.code == "ExpiredTokenException"
        assert [kept for state in writer.snapshot_state() for kept, _ in state.entries] == [entry]
    assert keys.refused > 1


async def test_keys_that_are_options_are_not_waited_for(service: ScriptedService) -> None:
    """Nothing can replace them."""
    service.script = [lambda body: (400, {"__type": "ExpiredTokenException", "message": "it has expired"})] * 2
    sink, entry = sink_of("kinesis", emulator_options(service.url))
    async with sink.create_writer() as writer:
        await writer.write(entry)
        with pytest.raises(DestinationError):
            await writer.flush(end_of_input=True)
    assert len(service.requests) == 1


async def test_variables_of_the_environment_are_not_waited_for(
    service: ScriptedService, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes cannot change them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOLD")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    sink, entry = sink_of("kinesis", AwsOptions(region="us-east-1", endpoint_url=service.url))
    async with sink.create_writer() as writer:
        await writer.write(entry)
        with pytest.raises(DestinationError):
            await writer.flush(end_of_input=True)
    assert keys.refused == 1


@pytest.mark.parametrize("was_accepted", [False, True])
async def test_keys_that_are_not_known_are_waited_for_if_they_were_accepted_before(
    service: ScriptedService, keys: Keys, *, was_accepted: bool
) -> None:
    """A key that was never valid is an error at once; a deleted key may be replaced soon."""
    keys.code, keys.replace_after = "UnrecognizedClientException", 3
    sink, entry = sink_of("kinesis", keys.session)
    async with sink.create_writer() as writer:
        if was_accepted:
            service.script.insert(0, success("Kinesis.PutRecords"))
            await writer.write(entry)
            await writer.flush(end_of_input=True)
        await writer.write(entry)
        if was_accepted:
            await writer.flush(end_of_input=True)
            return
        with pytest.raises(DestinationError) as caught:
            await writer.flush(end_of_input=True)
        assert caught.value.code == "UnrecognizedClientException"
    assert keys.refused == 1


async def test_a_writer_opens_with_a_token_that_is_replaced_late(
    service: ScriptedService, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look-ups before the first record are repeated."""
    monkeypatch.setattr(destinations, "_LOOK_SECONDS", 0.01)
    keys.replace_after = 3

    def describes(body: Body) -> tuple[int, Body]:
        status, answer = keys(body)
        return status, answer if status != 200 else {"Table": {"KeySchema": [{"AttributeName": "id"}]}}

    service.script = [describes] * 4
    sink: DynamoDbSink[Any] = DynamoDbSink(keys.session, "s")
    async with sink.create_writer() as writer:
        await writer.write(DynamoDbRequestEntry.put({"id": 1}))
        await writer.flush(end_of_input=True)
    assert keys.refused == 3


async def test_a_web_identity_that_is_replaced_late_ends_no_writer(service: ScriptedService, tmp_path: Path) -> None:
    """STS refuses the token of the file until others have written the next one."""
    token = tmp_path / "token"
    token.write_text("first")
    with running_sts() as sts:
        sts.refused_tokens = frozenset({"first"})
        options = AwsOptions(
            region="us-east-1",
            endpoint_url=service.url,
            role_arn="arn:aws:iam::123456789012:role/writer",
            web_identity_token_file=str(token),
            sts_endpoint_url=sts.url,
        )
        sink, entry = sink_of("kinesis", AwsSession(options, clock=count(0, 5).__next__), max_attempts=1)
        async with sink.create_writer() as writer:
            await writer.write(entry)
            flushing = asyncio.create_task(writer.flush(end_of_input=True))
            await wait_until(lambda: sts.asked >= 3)
            assert writer.failure is None
            token.write_text("second")
            await flushing
            assert writer.metrics.records_out == 1
    assert len(service.requests) == 1
