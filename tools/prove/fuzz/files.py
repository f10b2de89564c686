"""What reads files and items that are kept: checkpoints of Spark and of consumers."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, cast

from penstock.aws import AwsClient, AwsSession
from penstock.efo_consumer import (
    DynamoDbCheckpointStore,
    ShardPosition,
    SparkCheckpoint,
    StreamPositions,
)
from penstock.efo_consumer.errors import CheckpointError
from tools.prove.fuzz.target import MEBIBYTE, Target, loop, told

_IN_MEMORY = Path("/dev/shm")  # a folder of our own is made there


@cache
def _folder() -> Path:
    # Where a sync costs nothing, if there is such a place.
    folder = Path(tempfile.mkdtemp(prefix="penstock-fuzz-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


_POSITION = {"type": "AFTER_SEQUENCE_NUMBER", "value": "49", "caughtUp": 1}
_OFFSET = {"version": 2, "streams": {"s": {"shardId-0": _POSITION}}, "epoch": 3, "query": "q"}
_HEAD = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
_ELSEWHERE = StreamPositions({"s": {"shardId-0": ShardPosition.trim_horizon()}})


def _spark_checkpoint(data: bytes) -> str:
    folder = _folder() / "spark"
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in (("offsets", data), ("commits", b'v1\n{"nextBatchWatermarkMs":0}')):
        (folder / name).mkdir(parents=True)
        (folder / name / "0").write_bytes(content)
    checkpoint = SparkCheckpoint(str(folder))
    try:
        found = checkpoint.positions()
        added = checkpoint.reset(dict.fromkeys(found, _ELSEWHERE))
        assert checkpoint.positions() == dict.fromkeys(found, _ELSEWHERE) | {}, "it was not set back"
    except CheckpointError as error:
        return told(CheckpointError(name="", reason=error.reason))
    return f"{added} {min(len(found), 3)} sources"


class _Item(AwsSession):
    """A session whose only item holds an input's texts."""

    def __init__(self, data: bytes) -> None:
        positions, _, claims = data.decode(errors="replace").partition("\0")
        self._item = {"name": {"S": "c"}, "positions": {"S": positions}}
        if claims:
            self._item["claims"] = {"S": claims}

    def aio_client(self, service_name: str, *, endpoint_url: str | None = None) -> AwsClient:
        return cast("AwsClient", self)

    async def call(self, operation: str, **request: Any) -> dict[str, Any]:
        return {"Item": self._item} if operation == "get_item" else {}


def _consumer_checkpoint(data: bytes) -> str:
    async def use() -> str:
        store = DynamoDbCheckpointStore(_Item(data), "table", clock=lambda: 1.0)
        try:
            loaded = await store.load("c")
            claim = await store.claim("c", ["s"], "me")
            await store.save(claim, _ELSEWHERE)
        except CheckpointError as error:
            return told(CheckpointError(name="", reason=error.reason))
        return f"{0 if loaded is None else min(len(loaded.streams), 3)} {min(claim.numbers['s'], 3)}"

    return loop().run_until_complete(use())


_CLAIMS = {"s": {"number": 1, "owner": "she", "at": 1.5}}

FILES = {
    "spark-checkpoint": Target(
        lambda: [f"v1\n{_HEAD}\n{json.dumps(_OFFSET)}\n-".encode()], _spark_checkpoint, memory_bytes=64 * MEBIBYTE
    ),
    "consumer-checkpoint": Target(
        lambda: [(json.dumps(_OFFSET) + "\0" + json.dumps(_CLAIMS)).encode(), json.dumps(_OFFSET).encode()],
        _consumer_checkpoint,
        memory_bytes=64 * MEBIBYTE,
    ),
}
