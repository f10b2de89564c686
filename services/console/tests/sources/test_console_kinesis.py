"""Which streams' shards are listed, and how they are asked for."""

from __future__ import annotations

from typing import Any

import pytest
from console_world import session, shard_stats

from penstock.aws import AwsOptions, AwsServiceError
from penstock.efo_consumer import StreamIdentity
from penstock.operator_attributes.testing import FakeClock
from penstock.rpc import ServerSettings
from penstock.services.console._settings import ConsoleSettings
from penstock.services.console._sources import services as kinesis_module
from penstock.services.console._sources.services import KinesisSource
from penstock.services.console._values import Answer, Kind, Snapshot, State
from penstock.services.console._views.streams import known_streams

ARN = "arn:aws:kinesis:eu-west-1:999999999999:stream/theirs"


async def test_a_stream_of_another_account_is_listed_by_its_arn(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name it would be another stream, or missing; it is shown by its name."""
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


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_KINESIS"])
def test_the_endpoint_that_is_called_is_shown(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Also where a variable sets it; a region that is missing is reported by the first question."""
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert KinesisSource(AwsOptions(), dict).address == "https://kinesis.eu-west-1.amazonaws.com"
    monkeypatch.setenv(variable, "http://127.0.0.1:4567")
    assert KinesisSource(AwsOptions(), dict).address == "http://127.0.0.1:4567"
    assert KinesisSource(AwsOptions(endpoint_url="http://127.0.0.1:1"), dict).address == "http://127.0.0.1:1"
    assert KinesisSource(AwsOptions(region="no region"), dict).address == "no region"


class Account:
    """A client of an account with many streams, which may refuse to list them."""

    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses
        self.asked = 0

    async def call(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        assert operation == "ListStreams"
        self.asked += 1
        if self.refuses:
            raise AwsServiceError(code="AccessDeniedException", message="no right", status=400, operation=operation)
        return {"StreamNames": [f"other-{one:04d}" for one in range(300)], "HasMoreStreams": False}


@pytest.mark.parametrize("refuses", [False, True])
async def test_all_streams_are_listed_where_kinesis_allows_it(monkeypatch: pytest.MonkeyPatch, refuses: bool) -> None:
    """Those that services name come first. A refusal is kept for the page, and hides none of them."""

    async def list_shards(_client: Any, _stream: StreamIdentity) -> list[Any]:
        return []

    monkeypatch.setattr(kinesis_module, "list_shards", list_shards)
    settings = ConsoleSettings(server=ServerSettings(), aws=AwsOptions(region="eu-west-1"))
    clock = FakeClock()
    source = KinesisSource(
        AwsOptions(region="eu-west-1"), lambda: {"zulu": "zulu"}, lists_all=settings.list_streams, clock=clock
    )
    account = Account(refuses=refuses)
    source._client = account  # type: ignore[assignment]
    for _ in range(2):
        found = await source.fetch()
        assert (len(found), "zulu" in found) == (1 if refuses else 200, True)
    assert source.left_out == (0 if refuses else 101)
    assert ("AccessDeniedException" in source.others_unlisted) is refuses
    assert account.asked == 1
    clock.advance(61.0)
    await source.fetch()
    assert account.asked == 2
