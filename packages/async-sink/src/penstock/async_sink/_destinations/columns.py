"""Record batches: their columns as the types that a destination wants, and writers that take them."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from io import BytesIO, StringIO
from itertools import pairwise
from operator import sub
from typing import Any, Literal, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.async_sink._core.entries import EntryListener
from penstock.async_sink._core.runs import EntryRows, Rows
from penstock.async_sink._core.writer import AsyncSinkWriter
from penstock.async_sink.errors import RecordTooLargeError, SinkOptionError

I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes
R = TypeVar("R")

# Characters a value; longer ones suffer from the four bytes that StringIO has for each.
_SHORT_TEXT = 40


def read_column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> Any:
    """The column, cast if need be.

    Raises:
        SinkOptionError: there is no such column, more than one, or its type cannot be read so.
    """
    index = batch.schema.get_field_index(name)
    if index < 0:
        raise SinkOptionError(name, f"no such column, or more than one, among {', '.join(batch.schema.names)}")
    column = batch.column(index)
    try:
        return column if column.type == kind else pc.cast(column, kind)
    except pa.ArrowInvalid as error:
        raise SinkOptionError(name, f"{column.type} cannot be read as {kind}: {error}") from error
    except pa.ArrowNotImplementedError as error:
        raise SinkOptionError(name, f"{column.type} cannot be read as {kind}") from error


def first_row(wrong: Any) -> int:
    """The first row for which a boolean column says true; -1 for none."""
    return int(pc.index(wrong, value=True).as_py())


def byte_ends(*columns: Any) -> Any:
    """Bytes of all these columns together up to each row, and to the end of the last one: an array of 64 bit integers
    with one more than there are rows.

    Only differences mean something. The columns are of binaries or strings, without nulls, and of one length.
    """
    total: Any = None
    for column in columns:
        _, offsets, _ = column.buffers()
        if len(column) == 0 or offsets is None:
            return pa.array([0], pa.int64())
        places = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, offsets], offset=column.offset)
        ends = pc.cast(places, pa.int64())
        total = ends if total is None else pc.add(total, ends)
    return total


def integers(column: Any) -> "memoryview[int]":
    """Values of a column of 64 bit integers without nulls, where they are."""
    return _integers(column.buffers()[1], "q", column.offset, len(column))


def integers32(buffer: Any, first: int, count: int) -> "memoryview[int]":
    """Integers of 32 bits in a buffer of Arrow's, where they are."""
    return _integers(buffer, "i", first, count)


def _integers(buffer: Any, kind: Literal["i", "q"], first: int, count: int) -> "memoryview[int]":
    return memoryview(buffer).cast("B").cast(kind)[first : first + count]


class ColumnValues:
    """Values of a column of binaries or strings without nulls.

    Several times as fast as `to_pylist`, which goes by scalars.
    """

    def __init__(self, column: Any) -> None:
        self._is_text = column.type == pa.string()
        _, offsets, content = column.buffers()
        if offsets is None or len(column) == 0:
            offsets = bytes(4 * (column.offset + 1))
        self._offsets = _integers(offsets, "i", column.offset, len(column) + 1)
        # A memoryview of the column, or bytes that were copied out of it.
        self._content: Any = memoryview(b"" if content is None else content)
        self._first = 0

    def cut(self, start: int, end: int) -> Self:
        """Some of the values, copied: the column need not stay in memory for them."""
        part = type(self).__new__(type(self))
        part._is_text = self._is_text
        part._offsets = memoryview(self._offsets[start : end + 1].tobytes()).cast("i")
        part._first = part._offsets[0]
        part._content = bytes(self._content[part._first - self._first : part._offsets[-1] - self._first])
        return part

    def values(self, start: int, end: int) -> list[Any]:
        """Bytes, or text, of some rows."""
        offsets = self._offsets[start : end + 1].tolist()
        low = offsets[0] - self._first
        content = bytes(self._content[low : offsets[-1] - self._first])
        # Reading on is about twice as fast as slices, which need places relative to the first value.
        lengths = map(sub, offsets[1:], offsets)
        if not self._is_text:
            return list(map(BytesIO(content).read, lengths))
        if not content.isascii():
            return list(map(bytes.decode, map(BytesIO(content).read, lengths)))
        if len(content) <= _SHORT_TEXT * (end - start):
            return list(map(StringIO(content.decode()).read, lengths))
        text, first = content.decode(), offsets[0]
        return [text[begin - first : end - first] for begin, end in pairwise(offsets)]


def binary_values(column: Any, start: int, end: int) -> list[bytes]:
    """Values of a column of binaries without nulls."""
    return ColumnValues(column).values(start, max(start, end))


class ColumnarWriter(AsyncSinkWriter[I, R]):
    """A writer that takes record batches too."""

    @abstractmethod
    def rows_of(self, batch: pa.RecordBatch) -> Iterator[Rows[R]]:
        """The rows of a record batch, in order. All of them are checked before the first ones are given.

        Raises:
            SinkOptionError: a column is missing, or of a type that cannot be read.
            RecordError: a row breaks a rule of the destination, or is larger than the limit.
        """

    async def write_many(
        self, elements: Iterable[I] | pa.RecordBatch, *, listener: EntryListener | None = None
    ) -> None:
        """Write elements, or the rows of a record batch; `rows_of` says which columns it has.

        A record batch is checked as a whole before any of it is written.

        Raises:
            SinkOptionError: a column is missing, or of a type that cannot be read.
            RecordError: an element or a row cannot be written; of elements, those before it are written.
            SinkError: the writer has failed.
        """
        if not isinstance(elements, pa.RecordBatch):
            await super().write_many(elements, listener=listener)
            return
        first_index = 0
        for rows in self.rows_of(elements):
            await self._write_rows(rows, listener=listener, first_index=first_index)
            first_index += len(rows.ends) - 1


def sized_rows(sized: Iterable[tuple[R, int]], first_number: int, limit: int) -> EntryRows[R]:
    """Entries with their bytes as rows.

    Raises:
        RecordTooLargeError: an entry is larger than the limit.
    """
    entries, sizes = [], []
    for number, (entry, size) in enumerate(sized, start=first_number):
        if size > limit:
            raise RecordTooLargeError(number, size, limit)
        entries.append(entry)
        sizes.append(size)
    return EntryRows.of(entries, sizes)
