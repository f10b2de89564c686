"""The Producer of async-kinesis, in an environment of its own: it pins another botocore than ours.

`python _async_kinesis_put.py ENDPOINT RECORDS BYTES` prints records per second of the processor's time.
"""

import asyncio
import sys
import time

from kinesis import Producer
from kinesis.aggregators import SimpleAggregator
from kinesis.processors import Processor
from kinesis.serializers import Serializer

_WARM_UP_RECORDS = 1_000


class _Bytes(Processor, SimpleAggregator, Serializer):
    """A record per put, as it is."""

    def serialize(self, msg: bytes) -> bytes:
        """Nothing to do."""
        return msg

    def deserialize(self, data: bytes) -> bytes:
        """Nothing to do."""
        return data


async def main(endpoint: str, records: int, record_bytes: int) -> None:
    """Put them all."""
    data = b"x" * record_bytes
    producer = Producer(
        stream_name="s",
        endpoint_url=endpoint,
        region_name="us-east-1",
        processor=_Bytes(),
        put_rate_limit_per_shard=10**9,
        put_bandwidth_limit_per_shard=10**9,
        batch_size=500,
        skip_describe_stream=True,
    )
    async with producer:
        for number in range(_WARM_UP_RECORDS):
            await producer.put(data, partition_key=f"key-{number % 1000}")
        await producer.flush()
        began = time.process_time()
        for number in range(records):
            await producer.put(data, partition_key=f"key-{number % 1000}")
        await producer.flush()
        print(records / (time.process_time() - began))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
