"""Aggregates that tests write: what another producer's library reads of them, and where they belong."""

from __future__ import annotations

import pytest
from aws_kinesis_agg.aggregator import messages_pb2

from penstock.emulator.testing import (
    UserRecord,
    aggregate,
    malformed_aggregates,
    partition_keys_in,
    routed_aggregates,
    running_emulator,
)

HALF = 2**127


def unpacked(data: bytes) -> list[tuple[str, str | None, bytes]]:
    """Keys, explicit hash keys and data, as the messages of AWS's library have them."""
    body = messages_pb2.AggregatedRecord.FromString(data[4:-16])
    return [
        (
            body.partition_key_table[one.partition_key_index],
            body.explicit_hash_key_table[one.explicit_hash_key_index]
            if one.HasField("explicit_hash_key_index")
            else None,
            one.data,
        )
        for one in body.records
    ]


def test_library_of_aws_reads_what_was_packed() -> None:
    """Entries that no record refers to change nothing."""
    records = [UserRecord(b"x" * 300, "a"), UserRecord(b"", "ключ", "7"), UserRecord(b"2", "a", "0")]
    data = aggregate(records, unused_keys=["b" * 300], unused_hash_keys=["no number"])
    assert unpacked(data) == [("a", None, b"x" * 300), ("ключ", "7", b""), ("a", "0", b"2")]


def test_routed_aggregates_hold_records_of_one_open_shard() -> None:
    """Kinesis puts each of them into the shard that it was made for."""
    records = [UserRecord(b"%d" % number, f"key {number}") for number in range(50)]
    records += [UserRecord(b"low", "a", "0"), UserRecord(b"high", "a", str(2**128 - 1))]
    with running_emulator(tls=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="s", ShardCount=2)
        client.get_waiter("stream_exists").wait(StreamName="s", WaiterConfig={"Delay": 1})
        parent = client.list_shards(StreamName="s")["Shards"][0]["ShardId"]
        client.split_shard(StreamName="s", ShardToSplit=parent, NewStartingHashKey=str(HALF // 2))
        shards = client.list_shards(StreamName="s")["Shards"]
        packed = routed_aggregates(records, shards)
        starts = {one["ShardId"]: one["HashKeyRange"]["StartingHashKey"] for one in shards}
        for shard, data in packed.items():
            answer = client.put_record(StreamName="s", Data=data, PartitionKey="a", ExplicitHashKey=starts[shard])
            assert answer["ShardId"] == shard != parent
    assert len(packed) == 3
    assert sorted(row[2] for data in packed.values() for row in unpacked(data)) == sorted(one.data for one in records)


def test_partition_keys_hash_into_their_range() -> None:
    """They are different ones, and the same at each call."""
    keys = partition_keys_in(0, HALF - 1, 20)
    assert len({*keys}) == 20
    assert all(UserRecord(b"", key).hash_key < HALF for key in keys)
    assert keys == partition_keys_in(0, HALF - 1, 20)


def test_hash_key_needs_keys_that_are_valid() -> None:
    """What no producer should write belongs nowhere."""
    assert UserRecord(b"", None, "5").hash_key == 5
    for record in (UserRecord(b"", b"\xff"), UserRecord(b"", None), UserRecord(b"", "a", "no number")):
        with pytest.raises(ValueError, match=r"no hash key|invalid literal"):
            _ = record.hash_key


@pytest.mark.parametrize("name", malformed_aggregates())
def test_malformed_aggregates_begin_like_sound_ones(name: str) -> None:
    """They differ from each other, and from a sound one."""
    data = malformed_aggregates()[name]
    sound = aggregate([UserRecord(b"data", "key")])
    assert data.startswith(sound[:4])
    assert data != sound
