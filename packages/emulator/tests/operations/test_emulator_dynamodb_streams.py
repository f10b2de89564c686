"""DynamoDB Streams, asked by boto3."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from botocore.config import Config

from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = Config(retries={"total_max_attempts": 1})
DAY = 24 * 3600.0
KEYS = {"id": {"S": "a"}}
ITEM = {**KEYS, "n": {"N": "1"}}


class Table:
    def __init__(self, emulator: RunningEmulator, **options: Any) -> None:
        self.emulator, self.streams = emulator, emulator.dynamodb_streams
        self.client = emulator.client("dynamodbstreams", config=PLAIN)
        self.arn = emulator.call(lambda: self.streams.enable("orders", **options))

    def change(self, **images: Any) -> str:
        return self.emulator.call(lambda: self.streams.change("orders", KEYS, **images))

    def split(self, **options: Any) -> list[str]:
        return self.emulator.call(lambda: self.streams.split("orders", **options))

    def shards(self, **options: Any) -> list[dict[str, Any]]:
        answer = self.client.describe_stream(StreamArn=self.arn, **options)
        return list(answer["StreamDescription"]["Shards"])

    def iterator(self, kind: str = "TRIM_HORIZON", shard: str | None = None, **options: Any) -> str:
        shard = shard or self.shards()[0]["ShardId"]
        answer = self.client.get_shard_iterator(StreamArn=self.arn, ShardId=shard, ShardIteratorType=kind, **options)
        return str(answer["ShardIterator"])

    def read(self, iterator: str, **options: Any) -> tuple[list[str], str | None]:
        answer = self.client.get_records(ShardIterator=iterator, **options)
        numbers = [one["dynamodb"]["SequenceNumber"] for one in answer["Records"]]
        return numbers, answer.get("NextShardIterator")


@contextlib.contextmanager
def table(clock: ManualClock | None = None, **options: Any) -> Iterator[Table]:
    with running_emulator(tls=False, clock=clock) as emulator:
        yield Table(emulator, **options)


def refused(client: Any, operation: str, **parameters: Any) -> str:
    with pytest.raises(client.exceptions.ClientError) as caught:
        getattr(client, operation)(**parameters)
    return str(caught.value.response["Error"]["Code"])


@pytest.mark.parametrize(
    ("view", "images"),
    [
        ("KEYS_ONLY", set()),
        ("NEW_IMAGE", {"NewImage"}),
        ("OLD_IMAGE", {"OldImage"}),
        ("NEW_AND_OLD_IMAGES", {"NewImage", "OldImage"}),
    ],
)
def test_a_change_is_named_by_its_images_and_has_those_of_the_view(view: str, images: set[str]) -> None:
    """INSERT, MODIFY and REMOVE; a deletion by TTL says so."""
    identity = {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}
    with table(view=view) as one:
        one.change(new=ITEM)
        one.change(new=ITEM, old=ITEM)
        one.change(old=ITEM, user_identity=identity)
        records = one.client.get_records(ShardIterator=one.iterator())["Records"]
        assert [record["eventName"] for record in records] == ["INSERT", "MODIFY", "REMOVE"]
        assert {"NewImage", "OldImage"} & records[1]["dynamodb"].keys() == images
        assert [record.get("userIdentity") for record in records] == [None, None, identity]
        assert one.client.list_streams(TableName="orders")["Streams"][0]["StreamArn"] == one.arn
        assert one.client.list_streams(TableName="other")["Streams"] == []


def test_a_split_shard_ends_and_its_children_name_it() -> None:
    """They are found by their parent, over pages, and by the filter for children."""
    with table(shards=3) as one:
        parent = one.shards()[0]["ShardId"]
        children = one.split(shard=parent)
        [child] = one.split(shard=children[0], children=1)
        by_parent = {shard["ShardId"]: shard.get("ParentShardId") for shard in one.shards()}
        assert len(by_parent) == 6
        assert [by_parent[name] for name in (parent, *children, child)] == [None, parent, parent, children[0]]
        first = one.client.describe_stream(StreamArn=one.arn, Limit=4)["StreamDescription"]
        rest = one.shards(ExclusiveStartShardId=first["LastEvaluatedShardId"])
        assert [shard["ShardId"] for shard in (*first["Shards"], *rest)] == list(by_parent)
        filtered = one.shards(ShardFilter={"Type": "CHILD_SHARDS", "ShardId": parent})
        assert [shard["ShardId"] for shard in filtered] == children
        assert one.read(one.iterator(shard=parent)) == ([], None)
        assert one.read(one.iterator(shard=child))[1] is not None


def test_records_and_shards_expire_after_a_day() -> None:
    """A number that is gone is refused, and so is an iterator that leads to it; then the shard is not listed."""
    clock = ManualClock()
    with table(clock) as one:
        first = one.change(new=ITEM)
        clock.advance(100)
        second = one.change(new=ITEM)
        [parent] = [shard["ShardId"] for shard in one.shards()]
        [child] = one.split(children=1)
        clock.advance(DAY - 110)
        waiting = one.iterator(shard=parent)
        assert one.read(one.iterator("AFTER_SEQUENCE_NUMBER", parent, SequenceNumber=first))[0] == [second]
        clock.advance(20)
        assert refused(one.client, "get_records", ShardIterator=waiting) == "TrimmedDataAccessException"
        asked = {"StreamArn": one.arn, "ShardId": parent, "ShardIteratorType": "AFTER_SEQUENCE_NUMBER"}
        code = refused(one.client, "get_shard_iterator", **asked, SequenceNumber=first)
        assert code == "TrimmedDataAccessException"
        assert one.read(one.iterator(shard=parent)) == ([second], None)
        clock.advance(100)
        assert [shard["ShardId"] for shard in one.shards()] == [child]
        code = refused(one.client, "get_shard_iterator", **asked, SequenceNumber=second)
        assert code == "ResourceNotFoundException"


def test_what_the_service_leaves_open_can_be_asked_for_over_http() -> None:
    """Changes and splits, empty answers, late lists; the same faults as in Kinesis."""
    with running_emulator(tls=False) as emulator:

        def control(**body: Any) -> Any:
            url = f"{emulator.endpoint_url}/_emulator/dynamodb-streams"
            with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as answer:
                return json.load(answer)

        arn = control(do="enable", table="orders")["result"]
        number = control(do="change", table="orders", keys=KEYS, new=ITEM)["result"]
        assert control(list_delay=600) == {"list_delay": 600}
        emulator.behaviour = replace(emulator.behaviour, empty_answers=2)
        assert len(control(do="split", table="orders")["result"]) == 2
        client = emulator.client("dynamodbstreams", config=PLAIN)
        [shard] = client.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
        asked = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator, found = client.get_shard_iterator(**asked)["ShardIterator"], []
        while iterator:
            answer = client.get_records(ShardIterator=iterator)
            found.append([one["dynamodb"]["SequenceNumber"] for one in answer["Records"]])
            iterator = answer.get("NextShardIterator")
        assert found == [[], [], [number], [], [], []]
        emulator.faults.add("throttle", operation="GetRecords", stream="orders", shard=shard["ShardId"], count=1)
        iterator = client.get_shard_iterator(**asked)["ShardIterator"]
        assert refused(client, "get_records", ShardIterator=iterator) == "LimitExceededException"
        for wrong in ({"do": "merge"}, {"speed": 1}, {"do": "split", "table": "nowhere"}, {"do": "disable"}):
            with pytest.raises(urllib.error.HTTPError) as caught:
                control(**wrong)
            assert caught.value.code == 400
