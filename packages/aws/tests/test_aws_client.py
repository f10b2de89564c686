"""Calls by aiobotocore, over real sockets."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

from penstock.aws import AwsConnectionError, AwsOptionError, AwsServiceError, AwsSession, ErrorKind, classify
from penstock.aws.testing import emulator_options


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@asynccontextmanager
async def answering(status: int, body: bytes) -> AsyncIterator[str]:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers={"Date": "Tue, 15 Nov 1994 08:12:31 GMT"})

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
    """As those of the other clients of the session do."""
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
