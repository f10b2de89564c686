from __future__ import annotations

from typing import Any

import pytest

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/stream"


@pytest.mark.parametrize(
    ("operation", "params", "constraint"),
    [
        (
            "create_stream",
            {"StreamName": "no spaces", "ShardCount": 1},
            "Value 'no spaces' at 'streamName' failed to satisfy constraint: "
            "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+",
        ),
        (
            "create_stream",
            {"StreamName": "a" * 129, "ShardCount": 1},
            "at 'streamName' failed to satisfy constraint: Member must have length less than or equal to 128",
        ),
        (
            "create_stream",
            {"ShardCount": 1},
            "Value null at 'streamName' failed to satisfy constraint: Member must not be null",
        ),
        (
            "create_stream",
            {"StreamName": "stream", "ShardCount": 0},
            "Value '0' at 'shardCount' failed to satisfy constraint: Member must have value greater than or equal to 1",
        ),
        (
            "get_shard_iterator",
            {"StreamName": "stream", "ShardId": "shardId-0", "ShardIteratorType": "NEWEST"},
            "Member must satisfy enum value set: "
            "[AT_SEQUENCE_NUMBER, AFTER_SEQUENCE_NUMBER, TRIM_HORIZON, LATEST, AT_TIMESTAMP]",
        ),
        (
            "put_records",
            {"StreamName": "stream", "Records": [{"Data": b"", "PartitionKey": ""}]},
            "at 'records.1.member.partitionKey' failed to satisfy constraint: "
            "Member must have length greater than or equal to 1",
        ),
        (
            "put_records",
            {"StreamName": "stream", "Records": [{"Data": b"", "PartitionKey": "k" * 257}]},
            "at 'records.1.member.partitionKey' failed to satisfy constraint: "
            "Member must have length less than or equal to 256",
        ),
        (
            "put_records",
            {"StreamName": "stream", "Records": [{"Data": b""}]},
            "Value null at 'records.1.member.partitionKey' failed to satisfy constraint: Member must not be null",
        ),
        (
            "put_records",
            {"StreamName": "stream", "Records": []},
            "at 'records' failed to satisfy constraint: Member must have length greater than or equal to 1",
        ),
        (
            "put_record",
            {"StreamName": "stream", "Data": b"", "PartitionKey": "k", "ExplicitHashKey": "-1"},
            r"Member must satisfy regular expression pattern: ^(0|([1-9]\d{0,38}))$",
        ),
        (
            "put_records",
            {"StreamName": "stream", "Records": [{"Data": b"", "PartitionKey": "k", "ExplicitHashKey": "007"}]},
            "Value '007' at 'records.1.member.explicitHashKey' failed to satisfy constraint: ",
        ),
        (
            "put_records",
            {"StreamName": "stream", "Records": [{"Data": b"", "PartitionKey": "k", "ExplicitHashKey": "1٣"}]},
            "Value '1٣' at 'records.1.member.explicitHashKey' failed to satisfy constraint: ",
        ),
        (
            "get_records",
            {"ShardIterator": "AAAA", "Limit": 10_001},
            "at 'limit' failed to satisfy constraint: Member must have value less than or equal to 10000",
        ),
        (
            "register_stream_consumer",
            {"StreamARN": "not an ARN", "ConsumerName": "reader"},
            "at 'streamARN' failed to satisfy constraint: Member must satisfy regular expression pattern: ",
        ),
        (
            "subscribe_to_shard",
            {"ConsumerARN": f"{ARN}/consumer/reader:1", "ShardId": "shardId-0", "StartingPosition": {}},
            "Value null at 'startingPosition.type' failed to satisfy constraint: Member must not be null",
        ),
        (
            "list_shards",
            {"StreamName": "stream", "ShardFilter": {"Type": "SOME"}},
            "at 'shardFilter.type' failed to satisfy constraint: Member must satisfy enum value set: ",
        ),
    ],
)
def test_a_broken_constraint_of_the_model_is_named(
    world: Any, operation: str, params: dict[str, Any], constraint: str
) -> None:
    """Lengths, ranges, patterns, enumerations and required members are a ValidationException that names them."""
    world.stream()
    code, message = world.refused(lambda: getattr(world.client, operation)(**params))
    assert code == "ValidationException"
    assert message.startswith("1 validation error detected: ")
    assert constraint in message


def test_all_broken_constraints_are_named_at_once(world: Any) -> None:
    """The answer counts and lists every constraint that failed, in the order of the model."""
    code, message = world.refused(
        lambda: world.client.put_records(StreamName="", Records=[{"Data": b"", "PartitionKey": ""}])
    )
    assert code == "ValidationException"
    assert message.startswith("3 validation errors detected: ")
    assert message.index("'records.1.member.partitionKey'") < message.index("'streamName'")
