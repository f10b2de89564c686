"""Which streams' shards are listed, and how they are asked for."""

from __future__ import annotations

from typing import Any

import pytest
from console_world import session, shard_stats

from penstock.aws import AwsOptions
from penstock.efo_consumer import StreamIdentity
from penstock.services.console._sources import services as kinesis_module
from penstock.services.console._sources.services import KinesisSource
from penstock.services.console._values import Answer, Kind, Snapshot, State
from penstock.services.console._views.streams import known_streams

ARN = "arn:aws:kinesis:eu-west-1:999999999999:stream/theirs"


async def test_a_stream_of_another_account_is_listed_by_its_arn(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name it would be another stream, or none; it is shown by its name."""
    asked: list[StreamIdentity] = []

    async def list_shards(_client: Any, stream: StreamIdentity) -> list[Any]:
        asked.append(stream)
        return []

    monkeypatch.setattr(kinesis_module, "list_shards", list_shards)
    stats = shard_stats("flights", 0)
    theirs = shard_stats("flights", 0)
    object.__setattr__(theirs, "stream_name", ARN)
    reader = Answer(kind=Kind.READER, endpoint="a:1", state=State.UP, value=(session("query", [stats, theirs]),))
    source = KinesisSource(
        AwsOptions(region="eu-west-1", access_key_id="test", secret_access_key="test"),
        lambda: known_streams(Snapshot(readers=(reader,)), ["theirs", "other"]),
    )
    try:
        assert await source.fetch() == {"flights": (), "other": (), "theirs": ()}
    finally:
        await source.close()
    assert [(one.name, one.arn) for one in asked] == [("flights", None), ("other", None), (ARN, ARN)]
