"""Tags, mode, encryption and monitoring; and what is left out."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.emulator._operations.perform import OPERATIONS
from penstock.emulator._operations.validation import service_model

# Queues, channels, resource policies and account settings.
LEFT_OUT = [
    "AcknowledgeDeadLetterQueueRecords",
    "AcknowledgeQueueRecords",
    "CreateChannel",
    "CreateQueue",
    "DeleteChannel",
    "DeleteQueue",
    "DeleteResourcePolicy",
    "DescribeAccountSettings",
    "DescribeChannel",
    "DescribeQueue",
    "GetResourcePolicy",
    "ListChannels",
    "ListQueues",
    "PutResourcePolicy",
    "ReceiveDeadLetterQueueRecords",
    "ReceiveQueueRecords",
    "RestoreDeadLetterQueueRecords",
    "UpdateAccountSettings",
    "UpdateChannel",
    "UpdateDeadLetterQueueRecordsVisibility",
    "UpdateQueue",
    "UpdateQueueRecordsVisibility",
    "UpdateStreamRecordDistributionStrategy",
    "UpdateStreamWarmThroughput",
]


def left_out() -> list[str]:
    return sorted(set(service_model().operation_names) - OPERATIONS.keys())


def test_every_operation_is_emulated_or_left_out_on_purpose() -> None:
    """A new operation in botocore's model needs a decision."""
    assert set(left_out()) <= set(LEFT_OUT)


@pytest.mark.parametrize("operation", left_out())
def test_what_is_left_out_is_unknown_and_logged(world: Any, caplog: pytest.LogCaptureFixture, operation: str) -> None:
    """UnknownOperationException, whatever the request says, and a warning with the operation's name."""
    with caplog.at_level(logging.WARNING, logger="penstock.emulator"):
        refusal = world.refused(lambda: world.client._make_api_call(operation, {}))
    assert refusal[0] == "UnknownOperationException"
    assert operation in caplog.text


def test_tags_of_a_stream_are_added_replaced_listed_and_removed(world: Any) -> None:
    """AddTagsToStream, ListTagsForStream (in pages, by key) and RemoveTagsFromStream work together."""
    world.client.create_stream(StreamName="stream", ShardCount=1, Tags={"team": "flights"})
    world.client.add_tags_to_stream(StreamName="stream", Tags={"a": "1", "b": "2", "team": "trains"})
    page = world.client.list_tags_for_stream(StreamName="stream", Limit=2)
    assert (page["Tags"], page["HasMoreTags"]) == ([{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}], True)
    page = world.client.list_tags_for_stream(StreamName="stream", ExclusiveStartTagKey="b")
    assert (page["Tags"], page["HasMoreTags"]) == ([{"Key": "team", "Value": "trains"}], False)
    world.client.remove_tags_from_stream(StreamName="stream", TagKeys=["a", "absent"])
    tags = world.client.list_tags_for_stream(StreamName="stream")["Tags"]
    assert [tag["Key"] for tag in tags] == ["b", "team"]


def test_an_encrypted_stream_says_so_everywhere(world: Any) -> None:
    """In descriptions, in the answers to puts, and in the records that were put meanwhile."""
    world.stream()
    world.put("before")
    world.client.start_stream_encryption(StreamName="stream", EncryptionType="KMS", KeyId="alias/key")
    summary = world.client.describe_stream_summary(StreamName="stream")["StreamDescriptionSummary"]
    assert (summary["EncryptionType"], summary["KeyId"]) == ("KMS", "alias/key")
    record = world.client.put_record(StreamName="stream", Data=b"", PartitionKey="one")
    records = world.client.put_records(StreamName="stream", Records=[{"Data": b"", "PartitionKey": "many"}])
    assert record["EncryptionType"] == records["EncryptionType"] == "KMS"
    world.client.stop_stream_encryption(StreamName="stream", EncryptionType="KMS", KeyId="alias/key")
    world.put("after")
    read = {record["PartitionKey"]: record.get("EncryptionType") for record in world.read()["Records"]}
    assert read == {"before": None, "one": "KMS", "many": "KMS", "after": None}
    events = world.subscribe().next()["Records"]
    assert [record.get("EncryptionType") for record in events] == [None, "KMS", "KMS", None]
    again = world.refused(
        lambda: world.client.stop_stream_encryption(StreamName="stream", EncryptionType="KMS", KeyId="alias/key")
    )
    assert again[0] == "InvalidArgumentException"
