import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from moto.server import ThreadedMotoServer

from penstock.aws import (
    AwsConnectionError,
    AwsOptionError,
    AwsOptions,
    AwsServiceError,
    AwsSession,
    JsonClient,
    region_of_endpoint,
)
from penstock.aws.testing import emulator_options


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


async def test_a_json_call_reaches_a_real_server_signed(moto_url: str) -> None:
    """Parameters go out and the answer comes back, with the same names as in the API reference."""
    session = AwsSession(emulator_options(moto_url))
    async with JsonClient(session) as client:
        await client.call("CreateStream", {"StreamName": "flights", "ShardCount": 2})
        put = await client.call("PutRecord", {"StreamName": "flights", "Data": b"\x00\xff", "PartitionKey": "k"})
        assert put["ShardId"].startswith("shardId-")
        assert (await client.call("ListShards", {"StreamName": "flights"}))["Shards"][1]["ShardId"]
    assert session.client("kinesis").describe_stream_summary(StreamName="flights")


async def test_an_error_answer_becomes_a_typed_error(moto_url: str) -> None:
    """Code, status and operation are fields, so that callers decide by them."""
    async with JsonClient(AwsSession(emulator_options(moto_url))) as client:
        with pytest.raises(AwsServiceError) as error:
            await client.call("ListShards", {"StreamName": "nowhere"})
    assert (error.value.code, error.value.status) == ("ResourceNotFoundException", 400)
    assert error.value.operation == "ListShards"


async def test_unreachable_and_garbled_servers_raise_different_errors(unused_tcp_port: int) -> None:
    """No answer is a connection error; an answer that is not JSON is a service error with its status."""
    async with JsonClient(AwsSession(emulator_options(f"http://127.0.0.1:{unused_tcp_port}"))) as client:
        with pytest.raises(AwsConnectionError):
            await client.call("ListShards", {})

    async def garbled(_request: web.Request) -> web.Response:
        return web.Response(status=503, body=b"<html>")

    application = web.Application()
    application.router.add_post("/", garbled)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with JsonClient(AwsSession(emulator_options(f"http://127.0.0.1:{port}"))) as client:
        with pytest.raises(AwsServiceError) as error:
            await client.call("ListShards", {})
    await runner.cleanup()
    assert error.value.status == 503


def test_a_role_is_assumed_with_session_name_and_external_id(moto_url: str) -> None:
    """The signature is made with the role's temporary credentials."""
    session = AwsSession(
        AwsOptions(
            region="us-east-1",
            endpoint_url=moto_url,
            access_key_id="test",
            secret_access_key="test",
            role_arn="arn:aws:iam::123456789012:role/reader",
            role_session_name="night-job",
            role_external_id="outside",
            sts_endpoint_url=moto_url,
        )
    )
    credentials = session.frozen_credentials()
    assert credentials.token
    assert credentials.access_key is not None
    assert credentials.access_key.startswith("ASIA")
    assert session.sign("POST", moto_url, {}, b"{}")["X-Amz-Security-Token"] == credentials.token
    assert session.client("kinesis").list_streams()["StreamNames"] is not None


def test_a_missing_region_profile_or_credential_says_what_to_set() -> None:
    """What botocore would say only at the first call is said when the session is made or first used."""
    with pytest.raises(AwsOptionError) as error:
        AwsSession(AwsOptions())
    assert error.value.option == "region"
    with pytest.raises(AwsOptionError) as error:
        AwsSession(AwsOptions(profile="nowhere"))
    assert error.value.option == "awsProfile"
    with pytest.raises(AwsOptionError) as error:
        AwsSession(AwsOptions(region="mars north"))
    assert error.value.option == "region"
    with pytest.raises(AwsOptionError) as error:
        AwsSession(AwsOptions(region="eu-west-1")).frozen_credentials()
    assert error.value.option == "awsAccessKeyId"


def test_the_endpoint_is_the_regions_own_unless_given() -> None:
    """A custom endpoint loses its trailing slash, so that URLs can be joined."""
    assert AwsSession(AwsOptions(region="eu-west-1")).endpoint_url() == "https://kinesis.eu-west-1.amazonaws.com"
    assert AwsSession(emulator_options("http://127.0.0.1:1/")).endpoint_url() == "http://127.0.0.1:1"


def test_the_endpoint_is_that_of_the_service_that_has_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the environment too, where it names one for that service."""
    session = AwsSession(AwsOptions(region="eu-west-1", stream_service="dynamodbstreams"))
    assert session.endpoint_url() == "https://streams.dynamodb.eu-west-1.amazonaws.com"
    assert region_of_endpoint(session.endpoint_url()) == "eu-west-1"
    assert session.endpoint_url("kinesis") == "https://kinesis.eu-west-1.amazonaws.com"
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB_STREAMS", "http://streams.internal:1")
    assert AwsSession(session.options).endpoint_url() == "http://streams.internal:1"


def test_an_endpoint_is_known_without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not even started: a process of the profile's that asks for a password, or a metadata service that is away."""
    started = tmp_path / "started"
    command = tmp_path / "command"
    command.write_text(f"#!/bin/sh\ntouch {started}\nexit 1\n")
    command.chmod(0o700)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {command}\n")
    session = AwsSession(AwsOptions(region="eu-west-1", access_key_id="AKIA", secret_access_key="hush"))
    assert session.endpoint_url("firehose") == "https://firehose.eu-west-1.amazonaws.com"
    assert session.ssl_context() is not None
    assert session.client("kinesis").meta.endpoint_url == "https://kinesis.eu-west-1.amazonaws.com"
    assert not started.exists()


@pytest.mark.parametrize(("profile", "option"), [(None, "region"), ("job", "awsProfile")])
def test_a_configuration_file_that_cannot_be_parsed_is_an_option_error(
    tmp_path: Path, profile: str | None, option: str
) -> None:
    """The session raises the error, not the first call."""
    (tmp_path / "config").write_text("[default\nnonsense")
    with pytest.raises(AwsOptionError, match="Unable to parse config file") as error:
        AwsSession(AwsOptions(profile=profile))
    assert error.value.option == option


def test_an_endpoint_of_the_environment_is_checked_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown in errors and logs: one with a password is refused, and not shown."""
    session = AwsSession(AwsOptions(region="eu-west-1"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", "https://kinesis.internal:4567/")
    assert session.endpoint_url() == "https://kinesis.internal:4567"
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", "https://job:hush@kinesis.internal")
    # Looked up once: botocore makes a client for it.
    assert session.endpoint_url() == "https://kinesis.internal:4567"
    with pytest.raises(AwsOptionError) as error:
        AwsSession(session.options).endpoint_url()
    assert error.value.option == "endpointUrl"
    assert "hush" not in str(error.value)


def test_secrets_are_not_in_the_representation_of_a_session() -> None:
    """A session in a traceback shows where it points to, not with which key."""
    session = AwsSession(AwsOptions(region="eu-west-1", access_key_id="AKIA", secret_access_key="hush"))
    assert "hush" not in repr(session) + json.dumps(session.sign("POST", "https://x/", {}, b""))
