import pickle
import struct
import zlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.async_sink import (
    BufferedRequestState,
    DynamoDbRequestEntry,
    EntryCodec,
    FirehoseRequestEntry,
    KinesisRequestEntry,
    SqsRequestEntry,
    state_from_bytes,
    state_to_bytes,
)
from penstock.async_sink._destinations import dynamodb_items as dynamodb
from penstock.async_sink._destinations import sqs
from penstock.async_sink._destinations.kinesis import entry as kinesis
from penstock.async_sink._destinations.sqs import number_of
from penstock.async_sink.errors import SinkError

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
numbers = (
    st.integers(-(10**38) + 1, 10**38 - 1)
    | st.decimals(allow_nan=False, allow_infinity=False, places=20, min_value=-(10**17), max_value=10**17)
    | st.floats(allow_nan=False, allow_infinity=False)
)
plain = st.recursive(
    text | numbers | st.binary(max_size=40) | st.booleans() | st.none() | st.datetimes(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(names, inner, max_size=4)
        | st.sets(names, min_size=1, max_size=4)
        | st.sets(st.binary(max_size=9), min_size=1, max_size=4)
        | st.sets(st.integers() | st.decimals(allow_nan=False, allow_infinity=False, places=3), min_size=1, max_size=4)
    ),
    max_leaves=12,
)
keys = st.none() | st.text("abcö", min_size=1, max_size=128)
attributes = st.dictionaries(
    st.text("abc_-", min_size=1, max_size=20), names | numbers | st.binary(min_size=1, max_size=40), max_size=10
)
ENTRIES: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "kinesis": (
        st.builds(
            KinesisRequestEntry, st.binary(max_size=2_000), names, st.none() | st.integers(0, 2**128 - 1).map(str)
        ),
        kinesis.size_in_bytes,
    ),
    "firehose": (st.builds(FirehoseRequestEntry, st.binary(max_size=2_000)), lambda entry: len(entry.data)),
    "dynamodb": (
        st.dictionaries(names, plain, max_size=5).map(DynamoDbRequestEntry.put)
        | st.dictionaries(names, text | st.binary(max_size=9), max_size=2).map(DynamoDbRequestEntry.delete_key),
        dynamodb.size_in_bytes,
    ),
    "sqs": (
        st.builds(SqsRequestEntry, names, keys, keys, st.none() | st.integers(0, 900), attributes),
        sqs.size_in_bytes,
    ),
}
EXAMPLES = {
    "kinesis": KinesisRequestEntry(b"\x00\xff", "ключ", "42"),
    "firehose": FirehoseRequestEntry(b"\x00\xff"),
    "dynamodb": DynamoDbRequestEntry.put({"ключ": [{b"a", b"b"}, {Decimal("0.10")}, {"s"}, {"n": None}, True, 1.5]}),
    "sqs": SqsRequestEntry(
        "рейс", "g", "d", 0, {"a": 1, "b": b"\x00", "c": "ж", "d": Decimal("1.0000000000000000001")}
    ),
}


def state_of(entries: Sequence[Any], size: Any) -> BufferedRequestState[Any]:
    return BufferedRequestState(tuple((entry, size(entry)) for entry in entries))


def framed(payload: Any) -> bytes:
    body = msgspec.msgpack.encode(payload)
    return struct.pack("<4sBI", b"PSST", 1, zlib.crc32(body)) + body


@pytest.mark.parametrize("kind", ENTRIES)
@given(data=st.data())
def test_a_state_of_any_destination_comes_back_as_it_was(kind: str, data: st.DataObject) -> None:
    """Any bytes, non-ASCII keys, every type of attribute value; numbers keep all their digits."""
    entries, size = ENTRIES[kind]
    try:
        state = state_of(data.draw(st.lists(entries, max_size=8)), size)
    except ValueError:
        # Numbers that DynamoDB does not take are not entries.
        return
    assert sent(state_from_bytes(state_to_bytes(state))) == sent(state)


def sent(state: BufferedRequestState[Any]) -> list[Any]:
    """The entries, and numbers of SQS as the text that is sent: 0.1 is the same text as a float and as a decimal."""
    found = []
    for entry, size in state.entries:
        if isinstance(entry, SqsRequestEntry):
            wire = {name: sqs.wire_attribute(value) for name, value in entry.attributes.items()}
            entry = {**msgspec.structs.asdict(entry), "attributes": wire}
        found.append((entry, size))
    return found


@given(numbers)
def test_numbers_keep_their_digits(number: float | Decimal) -> None:
    """Written as text and read again, a number is the same one: as a float only if that is exact."""
    assert Decimal(str(number_of(str(number)))) == Decimal(str(number))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_any_changed_byte_and_any_cut_is_noticed(kind: str) -> None:
    """Nothing damaged is taken for a state, wherever the damage is."""
    _, size = ENTRIES[kind]
    raw = state_to_bytes(state_of([EXAMPLES[kind]] * 2, size))
    for place in range(len(raw)):
        changed = raw[:place] + bytes([raw[place] ^ 0x10]) + raw[place + 1 :]
        for damaged in (changed, raw[:place]):
            with pytest.raises(SinkError):
                state_from_bytes(damaged)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not the state"),
        (pickle.dumps([1]), "not the state"),
        (b"PSST\x03\x90", "SINK_STATE_VERSION"),
        (b"PSKS", "damaged"),
        (b"PSKS\x02\x90", "SINK_STATE_VERSION"),
        (b"PSKS\x01\x91", "damaged"),
        (b"PSKS\x01" + msgspec.msgpack.encode([[[1, 2, 3]]]), "damaged: entry 0"),
        (framed([1, 2]), "damaged"),
        (framed(["kafka", 1, []]), "'kafka'.*known: kinesis, firehose, dynamodb, sqs"),
        (framed(["sqs", 2, []]), "SINK_STATE_VERSION.*up to 1"),
        (framed(["sqs", 0, []]), "SINK_STATE_VERSION.* 0"),
        (framed(["kinesis", 1, [b"\x93\x01\x02\x03"]]), "damaged: entry 0"),
        (framed(["dynamodb", 1, [msgspec.msgpack.encode([{"a": {"S": 1}}, False])]]), "expected a string, got int"),
        (framed(["dynamodb", 1, [msgspec.msgpack.encode([{"a": {"N": "one"}}, False])]]), "invalid number 'one'"),
        (
            framed(["dynamodb", 1, [msgspec.msgpack.encode([{"a": {"X": 1}}, False])]]),
            "unknown type of an attribute value: 'X'",
        ),
        (
            framed(["sqs", 1, [msgspec.msgpack.encode(["b", None, None, None, {"a": ["Number", "x"]}])]]),
            "invalid number",
        ),
        (framed(["sqs", 1, [msgspec.msgpack.encode(["b", None, None, None, {"a": ["Binary", "x"]}])]]), "'Binary'"),
    ],
)
def test_bytes_that_are_no_state_are_an_error(raw: bytes, words: str) -> None:
    """Foreign, damaged and newer states raise different errors."""
    with pytest.raises(SinkError, match=words):
        state_from_bytes(raw)


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("kinesis", b"\x93\xc4\x02\x00\xff\xa8\xd0\xba\xd0\xbb\xd1\x8e\xd1\x87\xa242"),
        ("firehose", b"\x00\xff"),
    ],
)
def test_states_of_today_stay_readable(kind: str, raw: bytes) -> None:
    """The format is kept: these bytes were written by version 1."""
    _, size = ENTRIES[kind]
    state = state_of([EXAMPLES[kind]], size)
    assert state_from_bytes(framed([kind, 1, [raw]])) == state
    assert state_to_bytes(state) == framed([kind, 1, [raw]])


def test_states_of_the_first_format_stay_readable() -> None:
    """These bytes were written when only Kinesis sinks had states."""
    raw = b"PSKS\x01\x91\x92\x93\xc4\x02\x00\xff\xa8\xd0\xba\xd0\xbb\xd1\x8e\xd1\x87\xc0\x93\xc4\x01x\xa1k\xa242"
    entries = [KinesisRequestEntry(b"\x00\xff", "ключ"), KinesisRequestEntry(b"x", "k", "42")]
    assert state_from_bytes(raw) == state_of(entries, kinesis.size_in_bytes)


class LineCodec:
    """Codec of entries that are lines; its first version encoded them in UTF-16."""

    name = "lines"
    version = 2

    def encode(self, entry: str) -> bytes:
        return entry.encode()

    def decode(self, raw: bytes, version: int) -> str:
        return raw.decode("utf-16" if version == 1 else "utf-8")

    def get_size_in_bytes(self, entry: str) -> int:
        return len(entry.encode())


def test_a_destination_brings_its_own_codec() -> None:
    """With it its states are kept as others are, older versions too; without it the error asks for it."""
    codec: EntryCodec[str] = LineCodec()
    state = BufferedRequestState((("рейс", 8), ("b", 1)))
    raw = state_to_bytes(state, codec)
    assert state_from_bytes(raw, [codec]) == state
    assert state_from_bytes(framed(["lines", 1, ["ж".encode("utf-16")]]), [codec]).entries == (("ж", 2),)
    with pytest.raises(SinkError, match="give `codec`"):
        state_to_bytes(state)
    with pytest.raises(SinkError, match="SINK_STATE_CODEC"):
        state_from_bytes(raw)
    with pytest.raises(SinkError, match="entry 0"):
        state_from_bytes(framed(["lines", 2, [b"\xff"]]), [codec])


def test_the_state_of_the_sink_itself_is_kept_and_older_releases_refuse_it() -> None:
    """The bytes of a state without it stay as they were."""
    entries = ((KinesisRequestEntry(b"x", "key"), 4),)
    for state in (BufferedRequestState(entries, b"offset 7"), BufferedRequestState((), b"offset 7")):
        raw = state_to_bytes(state)
        assert raw[4] == 2
        assert state_from_bytes(raw) == state
    raw = state_to_bytes(BufferedRequestState(entries))
    assert raw[4] == 1
    assert len(msgspec.msgpack.decode(raw[9:])) == 3
