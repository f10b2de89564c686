"""The load of `bench throttle` by async-kinesis's Producer: `async_kinesis_load.py ENDPOINT WARM_UP SECONDS`.

Run in an environment of its own, since it wants another botocore. Prints JSON: accepted_per_second, throttled_share.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

from kinesis import Producer, StringProcessor


async def main(endpoint: str, warm_up: float, seconds: float) -> None:
    """Put as fast as the producer takes, and count what its requests are answered."""
    counts = [0, 0]
    async with Producer(
        "load", endpoint_url=endpoint, region_name="us-east-1", processor=StringProcessor()
    ) as producer:
        put_records = producer.client.put_records

        async def counted(**parameters: Any) -> Any:
            result = await put_records(**parameters)
            counts[0] += len(parameters["Records"])
            counts[1] += result["FailedRecordCount"]
            return result

        producer.client.put_records = counted

        async def put() -> None:
            while True:
                await producer.put("x" * 100)

        putting = asyncio.create_task(put())
        await asyncio.sleep(warm_up)
        began, sent, failed = time.monotonic(), *counts
        await asyncio.sleep(seconds)
        elapsed, sent, failed = time.monotonic() - began, counts[0] - sent, counts[1] - failed
        print(json.dumps({"accepted_per_second": (sent - failed) / elapsed, "throttled_share": failed / max(1, sent)}))
        sys.stdout.flush()
        putting.cancel()
        # What is left in its queue is of no interest any more.
        os._exit(0)


if __name__ == "__main__":
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test")
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
