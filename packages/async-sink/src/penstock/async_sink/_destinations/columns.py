"""Columns of record batches in the types of a destination, and faults of their rows."""

from collections.abc import Callable, Iterable, Iterator
from io import BytesIO, StringIO
from itertools import pairwise
from operator import sub
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.async_sink._core.runs import EntryRows
from penstock.async_sink.errors import RecordError, SinkOptionError

R = TypeVar("R")

compute: Any = pc
"""Its functions are made at run time, and have no annotations."""

# Characters a value; longer ones suffer from the four bytes that StringIO has for each.
_SHORT_TEXT = 40


def read_column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> Any:
    """The column, cast if necessary.

    Raises:
        SinkOptionError: the column is missing, is there more than once, or has a type that cannot be read.
    """
    index = batch.schema.get_field_index(name)
    if index < 0:
        raise SinkOptionError(name, f"no such column, or more than one, among {', '.join(batch.schema.names)}")
    column = batch.column(index)
    try:
        return column if column.type == kind else compute.cast(column, kind)
    except pa.ArrowInvalid as error:
        raise SinkOptionError(name, f"{column.type} cannot be read as {kind}: {error}") from error
    except pa.ArrowNotImplementedError as error:
        raise SinkOptionError(name, f"{column.type} cannot be read as {kind}") from error


class RowFault(NamedTuple):
    """A rule of a service that rows of a record batch may break."""

    wrong: Any
    """A column of booleans: which rows break it."""
    rule: str
    """The rule that they break."""
    found: Any = None
    """A column of their values, where that helps."""
    is_size: bool = False
    """Whether they are larger than the limit; `found` are their bytes."""

    def reason(self, row: int) -> str:
        """Why a row is refused."""
        return self.rule if self.found is None else f"{self.rule}, not {self.found[row].as_py()!r}"


def refuse(faults: Iterable[RowFault], first_number: int, limit: int) -> None:
    """Raise for the first row that breaks the first broken rule.

    Raises:
        RecordError: a row breaks a rule, or a row is larger than the limit.
    """
    for fault in faults:
        row = int(compute.index(fault.wrong, value=True).as_py())
        if row >= 0:
            if fault.is_size:
                raise RecordError.too_large(first_number + row, fault.found[row].as_py(), limit)
            raise RecordError(first_number + row, fault.reason(row))


def null_faults(column: Any, what: str) -> Iterator[RowFault]:
    """Rows without a value."""
    if column.null_count:
        yield RowFault(compute.is_null(column), f"{what} is null")


def text_faults(texts: Any, what: str) -> Iterator[RowFault]:
    """Rows whose text is not UTF-8. Spark, for example, can have any bytes in a string."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raw = texts.cast(pa.binary())
        readable = [None if value is None else value.decode(errors="replace").encode() for value in raw.to_pylist()]
        yield RowFault(compute.not_equal(raw, pa.array(readable, pa.binary())), f"{what} is not UTF-8")


def size_faults(sizes: Any, limit: int) -> Iterator[RowFault]:
    """Rows that are larger than the limit."""
    if (compute.max(sizes).as_py() or 0) > limit:
        yield RowFault(compute.greater(sizes, limit), f"it must be at most {limit} bytes", sizes, is_size=True)


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
        ends = compute.cast(places, pa.int64())
        total = ends if total is None else compute.add(total, ends)
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
        """A copy of some values, which does not keep the column in memory."""
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
        # Sequential reads are about twice as fast as slices.
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


def texts(column: Any) -> list[str | None]:
    """Values of a column of strings. Invalid UTF-8 becomes surrogates, which no service accepts."""
    try:
        values: list[str | None] = column.to_pylist()
        return values
    except UnicodeDecodeError:
        raw = column.cast(pa.binary()).to_pylist()
        return [None if value is None else value.decode(errors="surrogateescape") for value in raw]


class RowEntries(Generic[R]):
    """Entries that are created one by one from the rows of a record batch, and checked."""

    def __init__(self, make: Callable[[int], R], count: int, measure: Callable[[R, int], int], limit: int) -> None:
        """`make` creates the entry of a row or raises a ValueError; `measure` checks it and returns its bytes."""
        self._make = make
        self._count = count
        self._measure = measure
        self._limit = limit

    def _checked(self, row: int, number: int) -> tuple[R, int]:
        try:
            entry = self._make(row)
        except (ValueError, OverflowError) as error:
            raise RecordError(number, str(error)) from error
        size = self._measure(entry, number)
        if size > self._limit:
            raise RecordError.too_large(number, size, self._limit)
        return entry, size

    def rows(self, first_number: int) -> EntryRows[R]:
        """All entries with their sizes.

        Raises:
            RecordError: a row breaks a rule, or is larger than the limit.
        """
        checked = [self._checked(row, first_number + row) for row in range(self._count)]
        return EntryRows.of([entry for entry, _ in checked], (size for _, size in checked))

    def faults(self) -> Iterator[RowFault]:
        """The rules that rows break: a fault for each reason."""
        wrong: dict[str, list[int]] = {}
        for row in range(self._count):
            try:
                self._checked(row, row)
            except RecordError as error:
                wrong.setdefault(error.reason, []).append(row)
        for reason, rows in wrong.items():
            yield RowFault(compute.is_in(pa.array(range(self._count)), value_set=pa.array(rows)), reason)
