"""What the page on compatibility says of moto's Kinesis."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from penstock.async_sink import KinesisRequestEntry, KinesisStreamsSink
from penstock.aws import AwsOptions
from penstock.efo_consumer import Consumer, EfoConsumerConfigError
from penstock.emulator.testing import kinesis_client

# The servers of moto in a process share their streams.
STREAM = "flights-for-polling"


@pytest.fixture
def aws() -> Iterator[AwsOptions]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    kinesis_client(url).create_stream(StreamName=STREAM, ShardCount=1)
    yield AwsOptions(region="us-east-1", endpoint_url=url, access_key_id="test", secret_access_key="test")
    server.stop()


async def test_polling_and_writing_work_and_fan_out_is_refused_by_name(aws: AwsOptions, tmp_path: Path) -> None:
    """Its consumer ARNs lack the time at which the consumer was registered."""
    async with asyncio.timeout(60), KinesisStreamsSink(aws, STREAM).create_writer() as writer:
        for number in range(5):
            await writer.write(KinesisRequestEntry(data=b"%d" % number, partition_key="k"))
        await writer.flush(end_of_input=True)
    found: list[bytes] = []
    async with (
        asyncio.timeout(60),
        Consumer(STREAM, start="TRIM_HORIZON", aws=aws, checkpoints=None) as consumer,
    ):
        async for batch in consumer:
            found += batch.records["data"].to_pylist()
            if len(found) == 5:
                break
    assert found == [b"0", b"1", b"2", b"3", b"4"]
    by_fan_out = Consumer(STREAM, efo="job", registry=tmp_path / "leases.db", aws=aws, checkpoints=None)
    with pytest.raises(EfoConsumerConfigError) as caught:
        async with by_fan_out:
            pass
    assert caught.value.option == "consumers"
    assert f"stream/{STREAM}/consumer/job'" in caught.value.reason
