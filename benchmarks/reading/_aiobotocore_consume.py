"""A subscription read by aiobotocore, in a process of its own.

`python _aiobotocore_consume.py ENDPOINT CA_FILE CONSUMER_ARN SHARD_ID` prints the rows, and the seconds of the
processor's time that they took.
"""

import asyncio
import sys
import time

from aiobotocore.session import get_session


async def main(endpoint: str, ca_file: str, consumer_arn: str, shard_id: str) -> None:
    """Read the shard to its end."""
    rows = 0
    options = {"region_name": "us-east-1", "endpoint_url": endpoint, "verify": ca_file}
    async with get_session().create_client("kinesis", **options) as client:
        began = time.process_time()
        answer = await client.subscribe_to_shard(
            ConsumerARN=consumer_arn, ShardId=shard_id, StartingPosition={"Type": "TRIM_HORIZON"}
        )
        async for event in answer["EventStream"]:
            rows += len(event["SubscribeToShardEvent"]["Records"])
        print(rows, time.process_time() - began)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
