"""What `write_many` and `write_batches` take: elements, and rows of Arrow; and what they refuse."""

from collections.abc import Callable
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
import pytest

from penstock.async_sink import (
    AsyncSinkBase,
    AsyncSinkConfig,
    DynamoDbSink,
    FirehoseRequestEntry,
    FirehoseSink,
    KinesisRequestEntry,
    KinesisStreamsSink,
    PartitionKey,
    SqsRequestEntry,
    SqsSink,
    write_batches,
)
from penstock.async_sink._destinations.writer import RowContext
from penstock.async_sink.errors import SinkError, SinkOptionError
from penstock.async_sink.testing import FakeDestination, FakeKinesisWriter, FakeWriter
from penstock.aws.testing import emulator_options

ROWS = pa.record_batch({"city": ["Rome", "Oslo"], "degrees": [31, 12]})
DICTIONARIES = ROWS.to_pylist()
TABLE = pa.Table.from_batches([ROWS.slice(0, 1), ROWS.slice(1, 1)])


class OwnSink(AsyncSinkBase[Any, Any]):
    """A destination of a user's own, whose entries are text."""

    def __init__(self, fake: FakeDestination) -> None:
        self.fake = fake

    def create_writer(self) -> FakeWriter:
        return FakeWriter(self.fake, converter=lambda row: f"{row['city']} {row['degrees']}")

    def restore_writer(self, states: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("rows", [ROWS, TABLE])
async def test_a_converter_gets_each_row_of_arrow_as_a_dictionary(
    make_writer: Callable[..., FakeWriter], fake: FakeDestination, rows: Any
) -> None:
    """One entry a row, in order; it was one a column."""
    async with make_writer(converter=lambda row: f"{row['city']} {row['degrees']}") as writer:
        await writer.write_many(rows)
        await writer.flush(end_of_input=True)
    assert fake.accepted == ["Rome 31", "Oslo 12"]


@pytest.mark.parametrize("rows", [ROWS, TABLE])
async def test_rows_of_arrow_need_a_converter(make_writer: Callable[..., FakeWriter], rows: Any) -> None:
    """A custom writer has no columns; the error says what to do."""
    async with make_writer() as writer:
        with pytest.raises(SinkError, match="converter") as caught:
            await writer.write_many(rows)
        assert (caught.value.code, writer.records_written) == ("NOT_ELEMENTS", 0)


@pytest.mark.parametrize("batches", [ROWS, TABLE, [ROWS], [TABLE], iter([ROWS.slice(0, 1), TABLE.slice(1)])])
def test_one_batch_a_table_and_several_of_them_are_written(batches: Any) -> None:
    """By a custom sink; `write_batches` accepts more than lists."""
    fake = FakeDestination()
    assert write_batches(OwnSink(fake), batches).records == 2
    assert fake.accepted == ["Rome 31", "Oslo 12"]


async def test_a_table_is_written_by_a_sink_of_aws() -> None:
    """Row by row of all chunks, with consecutive indices for a listener."""
    written: list[KinesisRequestEntry] = []

    def submit(entries: Any, handler: Any) -> None:
        written.extend(entries)
        handler.complete()

    class Listener:
        seen: ClassVar[list[int]] = []

        def acknowledged(self, entry_index: int, attempts: int) -> None:
            self.seen.append(entry_index)

        def rejected(self, entry_index: int, attempts: int, failure: Any) -> None: ...

        def abandoned(self, error: BaseException) -> None: ...

    batch = pa.record_batch({"data": [b"1", b"2"], "partitionKey": ["a", "b"]})
    async with FakeKinesisWriter(submit) as writer:
        await writer.write_many(pa.Table.from_batches([batch, batch.slice(1)]), listener=Listener())
        await writer.flush(end_of_input=True)
    assert [(bytes(one.data), one.partition_key) for one in written] == [(b"1", "a"), (b"2", "b"), (b"2", "b")]
    assert sorted(Listener.seen) == [0, 1, 2]


FRAME = pd.DataFrame(DICTIONARIES)
TAKEN_APART: list[Any] = ["Rome", b"Rome", bytearray(b"Rome"), memoryview(b"Rome"), {"city": "Rome"}, FRAME]
AWS = emulator_options("http://127.0.0.1:1")
SINKS: list[Any] = [
    KinesisStreamsSink(AWS, "s", converter=lambda text: KinesisRequestEntry(str(text).encode(), "k")),
    FirehoseSink(AWS, "s", converter=lambda text: FirehoseRequestEntry(str(text).encode())),
    SqsSink(AWS, "https://sqs/1/q", converter=lambda text: SqsRequestEntry(str(text))),
    OwnSink(FakeDestination()),
]


@pytest.mark.parametrize("elements", TAKEN_APART, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("sink", SINKS, ids=lambda one: type(one).__name__)
async def test_what_would_be_taken_apart_is_refused(sink: Any, elements: Any) -> None:
    """Characters, keys and columns would silently become records; nothing is written."""
    async with sink.create_writer() as writer:
        with pytest.raises(SinkError) as caught:
            await writer.write_many(elements)
        assert (caught.value.code, writer.records_written) == ("NOT_ELEMENTS", 0)


@pytest.mark.parametrize(
    "batches",
    [*TAKEN_APART, [FRAME], DICTIONARIES, [DICTIONARIES], ["Rome"]],
    ids=lambda one: type(one).__name__,
)
def test_write_batches_refuses_all_but_arrow(batches: Any) -> None:
    """The error says how to convert them."""
    fake = FakeDestination()
    with pytest.raises(SinkError, match="Arrow") as caught:
        write_batches(OwnSink(fake), batches)
    assert (caught.value.code, fake.accepted) == ("NOT_ELEMENTS", [])


async def test_a_result_with_a_method_named_columns_is_an_iterable(
    make_writer: Callable[..., FakeWriter], fake: FakeDestination
) -> None:
    """Results of databases have one, and are iterables of rows."""

    class Result:
        def columns(self) -> None: ...

        def __iter__(self) -> Any:
            return iter(["a", "b"])

    async with make_writer() as writer:
        await writer.write_many(Result())
        await writer.flush(end_of_input=True)
    assert fake.accepted == ["a", "b"]


TWICE = pa.record_batch([pa.array(["a"]), pa.array(["b"])], names=["id", "id"])


async def test_columns_of_one_name_are_refused(make_writer: Callable[..., FakeWriter]) -> None:
    """A dictionary would hold the last one alone."""
    async with make_writer(converter=str) as writer:
        with pytest.raises(SinkOptionError) as caught:
            await writer.write_many(TWICE)
    assert caught.value.option == "id"
    kind = DynamoDbSink(AWS, "t", key_names=["id"]).create_writer().target.kind
    with pytest.raises(SinkOptionError):
        list(kind.rows_of(TWICE, RowContext(0, AsyncSinkConfig(), False)))
    with pytest.raises(SinkOptionError):
        PartitionKey.from_function(str).of_rows(TWICE)
