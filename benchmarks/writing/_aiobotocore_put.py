"""PutRecords by aiobotocore, in a process of its own.

`python _aiobotocore_put.py ENDPOINT RECORDS BYTES` prints records per second of the processor's time.
"""

import asyncio
import os
import sys
import time

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

_PER_REQUEST = 500


async def main(endpoint: str, records: int, record_bytes: int) -> None:
    """Put them all, request after request."""
    made = [{"Data": os.urandom(record_bytes), "PartitionKey": f"key-{number % 1000}"} for number in range(records)]
    config = AioConfig(retries={"mode": "standard", "total_max_attempts": 1})
    options = {"region_name": "us-east-1", "endpoint_url": endpoint, "config": config}
    async with get_session().create_client("kinesis", **options) as client:
        await client.put_records(StreamName="s", Records=made[:_PER_REQUEST])
        began = time.process_time()
        for start in range(0, records, _PER_REQUEST):
            answer = await client.put_records(StreamName="s", Records=made[start : start + _PER_REQUEST])
            if answer["FailedRecordCount"]:
                raise RuntimeError("records were refused")
        print(records / (time.process_time() - began))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
