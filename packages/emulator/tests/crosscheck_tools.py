"""The table of scenarios that every emulator is asked, and short words for what they do.

A scenario takes a client and returns what came of it, in plain values.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_HASH_KEY = 2**128 - 1
FIRST = "shardId-000000000000"
# Some never get there.
PATIENCE_SECONDS = 3
SCENARIOS: dict[str, Callable[[Any], Any]] = {}


def scenario(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


class Stream:
    """A stream with short words for what is done with it."""

    def __init__(self, client: Any, name: str, shards: int) -> None:
        self.client = client
        self.name = name
        client.create_stream(StreamName=name, ShardCount=shards)
        self.settle()

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = self.client.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]
        return summary

    @property
    def arn(self) -> str:
        return str(self.summary["StreamARN"])

    def settle(self) -> None:
        """Wait until the stream is ACTIVE."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.summary["StreamStatus"] != "ACTIVE":
            assert time.monotonic() < deadline, f"{self.name} does not become ACTIVE"
            time.sleep(0.02)

    def put(self, *keys: str, **options: Any) -> list[dict[str, Any]]:
        records = [{"Data": key.encode(), "PartitionKey": key, **options} for key in keys]
        results: list[dict[str, Any]] = self.client.put_records(StreamName=self.name, Records=records)["Records"]
        return results

    def iterator(self, shard: str = FIRST, kind: str = "TRIM_HORIZON", **position: Any) -> str:
        answer = self.client.get_shard_iterator(StreamName=self.name, ShardId=shard, ShardIteratorType=kind, **position)
        return str(answer["ShardIterator"])

    def read(self, shard: str = FIRST, kind: str = "TRIM_HORIZON", **position: Any) -> list[str]:
        records = self.client.get_records(ShardIterator=self.iterator(shard, kind, **position))["Records"]
        return [record["Data"].decode() for record in records]

    def shards(self, **options: Any) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = self.client.list_shards(StreamName=self.name, **options)["Shards"]
        return shards

    def split(self, shard: str = FIRST, key: int = 2**127) -> None:
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard, NewStartingHashKey=str(key))
        self.settle()

    def merge(self, first: str, second: str) -> None:
        self.client.merge_shards(StreamName=self.name, ShardToMerge=first, AdjacentShardToMerge=second)
        self.settle()


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives (of an answer as such only that it came), or the code of its error."""
    try:
        result = call()
    except ClientError as error:
        return error.response["Error"]["Code"]
    return result if isinstance(result, list) else "an answer"


def ids(shards: list[dict[str, Any]]) -> list[int]:
    return [int(shard["ShardId"].rpartition("-")[2]) for shard in shards]


def wait_for_consumers(client: Any, arn: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(c["ConsumerStatus"] != "ACTIVE" for c in client.list_stream_consumers(StreamARN=arn)["Consumers"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
