"""The bytes of ranges on the wire: the contract's, without copies."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.efo_consumer._remote.arrow_stream import BatchDecoder, BatchEncoder, decode, encode
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb


@given(st.binary(max_size=40_000))
def test_answers_are_what_the_generated_code_reads(arrow_ipc: bytes) -> None:
    """Any client of the contract gets the bytes, and ours where they lie, on an aligned address."""
    message = encode([pa.py_buffer(arrow_ipc)])
    assert pb.ReadRangeResponse.FromString(message).arrow_ipc == arrow_ipc
    found = decode(message)
    assert found.to_pybytes() == arrow_ipc
    if arrow_ipc:
        assert found.address % 16 == 0


@given(st.binary(max_size=300))
def test_answers_of_any_server_are_read(arrow_ipc: bytes) -> None:
    """Without padding, or in another order of fields, the generated code reads them."""
    plain = pb.ReadRangeResponse(arrow_ipc=arrow_ipc).SerializeToString()
    assert decode(plain).to_pybytes() == arrow_ipc
    padded = plain + pb.ReadRangeResponse(padding=b"12").SerializeToString()
    assert decode(padded).to_pybytes() == arrow_ipc


@given(st.binary(max_size=60))
def test_bytes_that_are_no_answer_end_in_an_error_of_protobuf(message: bytes) -> None:
    """Whatever arrives is read as the generated code reads it, or refused as it refuses it."""
    try:
        expected = pb.ReadRangeResponse.FromString(message).arrow_ipc
    except Exception as refusal:
        with pytest.raises(type(refusal)):
            decode(message)
        return
    assert decode(message).to_pybytes() == expected


def test_a_batch_survives_with_its_memory() -> None:
    """Schema first, then a batch that shares the message's memory."""
    batch = pa.RecordBatch.from_pydict({"data": [b"x" * 1000] * 100, "n": list(range(100))})
    decoder, encoder = BatchDecoder(), BatchEncoder(batch.schema)
    assert list(decoder.decode(decode(encoder.schema))) == []
    message = decode(encoder.encode(batch))
    (found,) = decoder.decode(message)
    assert found == batch
    data = found.column("data").buffers()[2]
    assert data is not None
    assert message.address <= data.address < message.address + message.size


def test_answers_are_one_arrow_stream() -> None:
    """The schema once, then batches as Arrow itself writes them, slices too; an empty range is the schema alone."""
    batch = pa.RecordBatch.from_pydict({"data": [b"x" * size for size in range(100)], "n": list(range(100))})
    encoder = BatchEncoder(batch.schema)
    assert decode(encoder.schema).equals(batch.schema.serialize())
    for part in (batch, batch.slice(13, 40), batch.slice(0, 0)):
        assert decode(encoder.encode(part)).equals(part.serialize())


def test_a_chunk_may_hold_a_whole_stream() -> None:
    """Another server may send schema, batches and the end of the stream in one answer."""
    batch = pa.RecordBatch.from_pydict({"data": [b"a", b"b"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
        stream.write_batch(batch)
    assert list(BatchDecoder().decode(sink.getvalue())) == [batch, batch]


def test_a_chunk_that_breaks_off_is_an_error() -> None:
    """Half a message is not taken for the end of the range."""
    batch = pa.RecordBatch.from_pydict({"data": [b"x" * 1000]})
    decoder = BatchDecoder()
    assert list(decoder.decode(batch.schema.serialize())) == []
    whole = batch.serialize()
    for size in (3, 7, 100, whole.size - 1):
        with pytest.raises((OSError, pa.ArrowInvalid)):
            list(decoder.decode(whole.slice(0, size)))
