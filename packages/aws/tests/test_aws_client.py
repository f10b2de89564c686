"""Calls by aiobotocore, over real sockets."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

from penstock.aws import (
    UNREADABLE_ANSWER,
    AwsConnectionError,
    AwsOptionError,
    AwsServiceError,
    AwsSession,
    ErrorKind,
    JsonClient,
    classify,
)
from penstock.aws.testing import emulator_options


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@asynccontextmanager
async def answering(status: int, body: bytes, content_type: str = "") -> AsyncIterator[str]:
    async def answer(_request: web.Request) -> web.Response:
        headers = {"Date": "Tue, 15 Nov 1994 08:12:31 GMT"}
        return web.Response(status=status, body=body, headers=headers, content_type=content_type or None)

    application = web.Application()
    application.router.add_post("/", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def test_any_service_is_called_by_the_names_of_boto3(moto_url: str) -> None:
    """Several calls at once share the client that the first of them opens; one that was closed opens again."""
    session = AwsSession(emulator_options(moto_url))
    async with session.aio_client("kinesis") as kinesis, session.aio_client("sqs", endpoint_url=moto_url) as sqs:
        await asyncio.gather(*(kinesis.call("create_stream", StreamName=name, ShardCount=1) for name in "ab"))
        assert set((await kinesis.call("list_streams"))["StreamNames"]) >= {"a", "b"}
        assert (await sqs.call("create_queue", QueueName="q"))["QueueUrl"].endswith("/q")
    assert (await kinesis.call("list_streams"))["StreamNames"]
    await kinesis.close()


async def test_an_error_answer_becomes_a_typed_error(moto_url: str) -> None:
    """Code, status and operation are fields; the whole answer is in the cause."""
    async with AwsSession(emulator_options(moto_url)).aio_client("kinesis") as client:
        with pytest.raises(AwsServiceError) as caught:
            await client.call("describe_stream_summary", StreamName="nowhere")
        assert (caught.value.code, caught.value.status) == ("ResourceNotFoundException", 400)
        assert caught.value.operation == "DescribeStreamSummary"
        assert isinstance(caught.value.__cause__, ClientError)
        with pytest.raises(AwsServiceError, match="Unknown parameter") as caught:
            await client.call("describe_stream_summary", Stream="nowhere")
        assert caught.value.code == "ValidationException"


async def test_a_server_that_is_away_or_garbled_may_come_back(unused_tcp_port: int) -> None:
    """Both are retryable; an answer without a code has its status."""
    async with AwsSession(emulator_options(f"http://127.0.0.1:{unused_tcp_port}")).aio_client("kinesis") as client:
        with pytest.raises(AwsConnectionError, match=str(unused_tcp_port)) as away:
            await client.call("list_streams")
    assert classify(away.value) is ErrorKind.RETRYABLE
    async with answering(503, b"<html>") as url, AwsSession(emulator_options(url)).aio_client("kinesis") as client:
        with pytest.raises(AwsServiceError) as garbled:
            await client.call("list_streams")
    assert classify(garbled.value) is ErrorKind.RETRYABLE


async def test_answers_and_errors_tell_the_services_time() -> None:
    """As the calls of the session's other clients do."""
    for status in (200, 400):
        async with answering(status, b"{}") as url:
            session = AwsSession(emulator_options(url))
            async with session.aio_client("kinesis") as client:
                try:
                    await client.call("list_streams")
                except AwsServiceError:
                    assert status == 400
        assert 784887151 <= session.service_clock().latest() < 784887251


async def test_authorities_that_cannot_be_read_are_no_matter_of_the_network() -> None:
    """The error names the option."""
    async with AwsSession(emulator_options("https://127.0.0.1:1", "/nowhere.pem")).aio_client("kinesis") as client:
        with pytest.raises(AwsOptionError, match="nowhere") as caught:
            await client.call("list_streams")
    assert caught.value.option == "caBundle"


def test_aiobotocore_is_imported_by_the_first_call() -> None:
    """A session that signs for others, and a client that is never used, cost nothing of it."""
    program = (
        "import sys; from penstock.aws import AwsOptions, AwsSession;"
        "AwsSession(AwsOptions(region='eu-west-1')).aio_client('kinesis');"
        "assert not {'aiobotocore', 'aiohttp'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


PORTAL = b"<!DOCTYPE html><html><title>Log in</title></html>"


async def by_json_client(session: AwsSession) -> object:
    async with JsonClient(session) as client:
        return await client.call("ListStreams", {})


async def by_submission(session: AwsSession) -> object:
    async with JsonClient(session) as client:
        return await client.submit("PutRecords", b"{}")


async def by_aio_client(session: AwsSession) -> object:
    async with session.aio_client("kinesis") as client:
        return await client.call("list_streams")


async def by_boto3(session: AwsSession) -> object:
    return await asyncio.to_thread(lambda: session.client("kinesis").list_streams())


CLIENTS = pytest.mark.parametrize("call", [by_json_client, by_submission, by_aio_client, by_boto3])


@CLIENTS
async def test_html_names_the_endpoint_that_sent_it(call: Callable[[AwsSession], Awaitable[object]]) -> None:
    """With HTTP 200 it would be taken for an answer without fields."""
    async with answering(200, PORTAL, "text/html") as url:
        with pytest.raises(AwsServiceError) as caught:
            await call(AwsSession(emulator_options(url)))
    assert (caught.value.code, caught.value.status) == (UNREADABLE_ANSWER, 200)
    assert classify(caught.value) is ErrorKind.FATAL
    assert url in caught.value.message
    assert "text/html" in caught.value.message
    assert "endpoint_url" in caught.value.message


@CLIENTS
@pytest.mark.parametrize("body", [b"", b"slow down", PORTAL, b'{"message": "Rate exceeded"}'])
async def test_a_throttle_needs_no_body_of_aws(call: Callable[[AwsSession], Awaitable[object]], body: bytes) -> None:
    """A proxy or a gateway before the service throttles by the status alone."""
    async with answering(429, body, "text/html") as url:
        with pytest.raises((AwsServiceError, ClientError)) as caught:
            await call(AwsSession(emulator_options(url)))
    assert classify(caught.value) is ErrorKind.THROTTLED


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "UnknownError", ErrorKind.FATAL),
        (404, "UnknownError", ErrorKind.FATAL),
        (408, "UnknownError", ErrorKind.RETRYABLE),
        (502, "InternalFailure", ErrorKind.RETRYABLE),
    ],
)
async def test_an_error_page_names_the_endpoint(status: int, code: str, kind: ErrorKind) -> None:
    """Whatever sent it, it was not the service."""
    async with answering(status, PORTAL, "text/html") as url:
        with pytest.raises(AwsServiceError) as caught:
            await by_json_client(AwsSession(emulator_options(url)))
    assert (caught.value.code, classify(caught.value)) == (code, kind)
    assert url in caught.value.message


async def test_an_answer_that_is_cut_is_unreadable() -> None:
    """It is an error of this package, as all others."""
    async with answering(200, b'{"StreamNames": [') as url:
        with pytest.raises(AwsServiceError) as caught:
            await by_json_client(AwsSession(emulator_options(url)))
    assert caught.value.code == UNREADABLE_ANSWER
