"""The pure parts, without sockets."""

from __future__ import annotations

import math
import zlib
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pybase64
import pytest
from botocore.eventstream import ChecksumMismatch, EventStreamBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.emulator import EmulatorConfig, EmulatorConfigError, EmulatorServer, Kinesis
from penstock.emulator._http.codec import encode_frame
from penstock.emulator._operations.perform import perform
from penstock.emulator._state.positions import TokenSealer
from penstock.emulator._state.sequence import SequenceNumbers
from penstock.emulator.testing import ManualClock, OtherClock

NOW = 1_750_000_000.0


def test_frames_carry_both_checksums() -> None:
    """Total and header length, and the CRC32 of the prelude and of the whole message, as botocore checks them."""
    frame = encode_frame((("name", "value"),), b"payload")
    assert int.from_bytes(frame[:4], "big") == len(frame)
    assert int.from_bytes(frame[8:12], "big") == zlib.crc32(frame[:8])
    assert int.from_bytes(frame[-4:], "big") == zlib.crc32(frame[:-4])
    buffer = EventStreamBuffer()
    buffer.add_data(frame[:20])
    assert list(buffer) == []
    buffer.add_data(frame[20:])
    (message,) = buffer
    headers: Any = message.headers
    assert (headers, message.payload) == ({"name": "value"}, b"payload")
    broken = EventStreamBuffer()
    broken.add_data(frame[:-6] + b"X" + frame[-5:])
    with pytest.raises(ChecksumMismatch):
        list(broken)


@given(epoch=st.integers(0, 2**32), index=st.integers(0, 2**20), counters=st.lists(st.integers(0, 2**50), min_size=2))
def test_sequence_numbers_order_like_their_counters(epoch: int, index: int, counters: list[int]) -> None:
    """Whatever the second of arrival, the counter decides; numbers of other shards are not taken."""
    numbers = SequenceNumbers(epoch=epoch, index=index)
    texts = {counter: numbers.text(counter, counter % 7 + 2**31) for counter in counters}
    assert sorted(counters) == sorted(counters, key=lambda counter: texts[counter])
    assert [numbers.counter(texts[counter]) for counter in counters] == counters
    assert {len(text) for text in texts.values()} == {56}
    assert SequenceNumbers(epoch=epoch + 1, index=index).counter(texts[counters[0]]) is None
    assert SequenceNumbers(epoch=epoch, index=index + 1).counter(texts[counters[0]]) is None


def test_tokens_are_bound_to_their_kind_and_their_emulator() -> None:
    """A token opens only where it was sealed, and only as what it is."""
    sealer = TokenSealer(Random(1))
    token = sealer.seal("one", [1.5, "text", 2**40])
    assert sealer.open("one", token) == [1.5, "text", 2**40]
    assert sealer.open("other", token) is None
    assert TokenSealer(Random(2)).open("one", token) is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("port", 65536),
        ("tls_port", -1),
        ("account_id", "12"),
        ("region", ""),
        ("consumer_creation_delay", timedelta(seconds=-1)),
        ("idle_event_interval", timedelta(0)),
        ("subscription_lifetime", timedelta(0)),
        ("subscription_bytes_per_second", 0),
        ("consumers_per_stream", 0),
        ("max_record_bytes", 0),
        ("shard_write_records_per_second", math.nan),
        ("firehose_calls_per_second", math.inf),
        ("operation_limits", {"ListShards": math.nan}),
        ("daily_limits", {"UpdateShardCount": math.inf}),
    ],
)
def test_an_option_that_cannot_work_is_named(option: str, value: Any) -> None:
    """The error has the option's name as a field, and says what it should be."""
    with pytest.raises(EmulatorConfigError, match=option) as caught:
        EmulatorConfig(**{option: value})
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("option", "value", "beside"),
    [
        ("tls_port", 9443, {"tls": False}),
        ("ca_file", Path("ca.pem"), {"tls": False}),
        ("access_keys", {"key": "secret"}, {"verify_signatures": False}),
        ("operation_limits", {"ListShards": 100}, {"enforce_limits": False}),
        ("daily_limits", {"UpdateShardCount": None}, {"enforce_limits": False}),
        ("shard_read_calls_per_second", 10, {"enforce_limits": False}),
        ("firehose_bytes_per_second", 10, {"enforce_limits": False}),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(option: str, value: Any, beside: dict[str, Any]) -> None:
    """The error names it, and the option that it needs; alone, that one is fine."""
    EmulatorConfig(**beside)
    (needed,) = beside
    with pytest.raises(EmulatorConfigError, match=f"does nothing without {needed}") as caught:
        EmulatorConfig(**{option: value}, **beside)
    assert caught.value.option == option
    assert "secret" not in str(caught.value)


def test_a_clock_of_the_callers_is_not_replaced_by_a_manual_one() -> None:
    """One of the two would do nothing."""
    with pytest.raises(EmulatorConfigError, match="manual_clock"):
        EmulatorServer(EmulatorConfig(manual_clock=True), clock=OtherClock(ahead_seconds=5))
    assert isinstance(EmulatorServer(EmulatorConfig(manual_clock=True)).clock, ManualClock)


Step = tuple[str, int]


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "put", "put", "split", "merge", "scale", "idle"]), st.integers(0, 2**32 - 1)),
        max_size=60,
    )
)
def test_no_record_is_lost_doubled_or_reordered_by_resharding(steps: list[Step]) -> None:
    """Whatever puts, splits and merges do, reading the lineage gives each record once, in order per hash key."""
    kinesis = Kinesis(EmulatorConfig(enforce_limits=False), random=Random(0))
    stream = kinesis.create_stream("stream", 2, now=NOW - 10)
    written: dict[str, list[bytes]] = {}
    for number, (kind, value) in enumerate(steps):
        # The clock of the machine may go back.
        now = NOW + number / 10 - value % 3
        open_shards = stream.open_shards
        shard = open_shards[value % len(open_shards)]
        if kind == "put":
            key = str((value % 16) * 2**124)
            data = b"%d" % number
            written.setdefault(key, []).append(data)
            entry = {"Data": pybase64.b64encode(data).decode(), "PartitionKey": key, "ExplicitHashKey": key}
            perform(kinesis, "PutRecords", {"StreamName": "stream", "Records": [entry]}, now)
        elif kind == "split" and shard.hash_keys.end - shard.hash_keys.start > 4:
            stream.split(shard, (shard.hash_keys.start + shard.hash_keys.end) // 2, now)
        elif kind == "merge" and len(open_shards) > 1:
            index = value % (len(open_shards) - 1)
            stream.merge(open_shards[index], open_shards[index + 1], now)
        elif kind == "scale":
            stream.scale(max(1, min(2 * len(open_shards), value % 8 + (len(open_shards) + 1) // 2)), now)
        elif kind == "idle":
            shard.advance(now)
    read: dict[str, list[bytes]] = {}
    sequence_numbers = []
    # Shards are created after their parents, so their order is an order of the lineage.
    for shard in stream.shards:
        numbers = [int(record.sequence_number) for record in shard.records]
        assert numbers == sorted(set(numbers))
        arrivals = [record.arrival_ms for record in shard.records]
        assert arrivals == sorted(arrivals)
        assert all(parent.index < shard.index for parent in shard.parents)
        sequence_numbers += numbers
        for record in shard.records:
            read.setdefault(record.partition_key, []).append(record.data)
    assert read == written
    assert len(set(sequence_numbers)) == len(sequence_numbers)
    ends = [-1] + [shard.hash_keys.end for shard in stream.open_shards]
    assert [shard.hash_keys.start for shard in stream.open_shards] == [end + 1 for end in ends[:-1]]
    assert ends[-1] == 2**128 - 1
