"""Entries, converters from elements to entries, and the exceptions that end a writer."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, cast, runtime_checkable

import msgspec
import pyarrow as pa
from opentelemetry.context import Context

from penstock.async_sink.errors import SinkError, SinkOptionError

I_contra = TypeVar("I_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class WriteContext(Protocol):
    """The writer, as a converter sees it."""

    @property
    def destination(self) -> str:
        """Name of the destination."""

    @property
    def records_written(self) -> int:
        """Records written so far: the number of the record that is being converted."""


class ElementConverter(Protocol[I_contra, R_co]):
    """Converts an element to a request entry. One per sink, without state between elements."""

    def apply(self, element: I_contra, context: WriteContext) -> R_co:
        """The entry for the element."""


def function_of(
    converter: ElementConverter[I_contra, R_co] | Callable[[I_contra], R_co],
) -> Callable[[I_contra, WriteContext], R_co]:
    """Return the function of a converter; a plain function ignores the context."""
    if hasattr(converter, "apply"):
        return cast("ElementConverter[I_contra, R_co]", converter).apply
    return lambda element, context: converter(element)


R = TypeVar("R")

_ROWS_AT_A_TIME = 1_000


def row_dictionaries(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a record batch, with their values by the names of the columns.

    Raises:
        SinkOptionError: two columns have the same name; a dictionary would hold the last one only.
    """
    names = batch.schema.names
    for place, name in enumerate(names):
        if name in names[:place]:
            raise SinkOptionError(name, "there is more than one column of this name; give each a name of its own")
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def elements_of(given: Any, *, has_converter: bool) -> Iterable[Any]:
    """Return the elements that `write_many` was given. Rows of Arrow become dictionaries for the converter.

    Raises:
        SinkError: NOT_ELEMENTS: rows of Arrow came without a converter, or the value is text, bytes, a mapping or a
            DataFrame, of which each character, key or column would become a record.
    """
    name = type(given).__name__
    if isinstance(given, pa.RecordBatch | pa.Table):
        if not has_converter:
            reason = "give the writer a converter, which gets each row as a dictionary"
            raise SinkError.of("NOT_ELEMENTS", type=name, reason=reason)
        table = given if isinstance(given, pa.Table) else pa.Table.from_batches([given])
        batches = table.to_batches(max_chunksize=_ROWS_AT_A_TIME)
        return (row for batch in batches for row in row_dictionaries(batch))
    columns = getattr(given, "columns", None)
    # Results of databases have a method of that name.
    is_frame = columns is not None and not callable(columns)
    if is_frame or isinstance(given, str | bytes | bytearray | memoryview | Mapping):
        reason = "each column" if is_frame else "each key" if isinstance(given, Mapping) else "each character or byte"
        reason += " of it would be a record; give an iterable of elements, or a record batch or table of Arrow"
        raise SinkError.of("NOT_ELEMENTS", type=name, reason=reason)
    return cast("Iterable[Any]", given)


@dataclass(frozen=True)
class EntryFailure:
    """Why the destination did not accept an entry of a request."""

    index: int
    """Place in the request, from zero."""
    error_code: str = ""
    """The destination's code."""
    error_message: str = ""
    """The destination's words."""
    throttled: bool = True
    """Whether the destination refused it because it is full. Only this slows the writer down."""
    final: bool = False
    """Whether a retry would give the same result: then the entry is not sent again."""
    spoilt: bool = False
    """Whether an unknown entry caused the refusal of the whole request, which is then cut in two and sent again."""
    counts: bool = True
    """Whether the attempt counts against `max_attempts`. It does not while the destination is being created, or while
    its credentials are refused or cannot be fetched."""


@dataclass(frozen=True)
class FailedAttempt:
    """A failed attempt to send an entry."""

    seconds: float
    """Since it was written."""
    error_code: str
    """The destination's code."""
    error_message: str
    """The destination's words."""


class EntryListener(Protocol):
    """Receives the outcome of the entries that were written with it, on the writer's loop.

    A listener with a method `acknowledged_many` (`EntryRunListener`) gets one call for consecutive entries.
    """

    def acknowledged(self, entry_index: int, attempts: int) -> None:
        """The destination accepted the entry after `attempts` submissions."""

    def rejected(self, entry_index: int, attempts: int, failure: EntryFailure) -> None:
        """The destination refused the entry permanently. This does not fail the writer."""

    def abandoned(self, error: BaseException) -> None:
        """The writer has failed: entries without an outcome so far get none."""


@runtime_checkable
class EntryRunListener(EntryListener, Protocol):
    """A listener that gets one call for consecutive entries that were accepted together."""

    def acknowledged_many(self, first_index: int, count: int, attempts: int) -> None:
        """The destination has accepted that many entries from `first_index` on; instead of `acknowledged` for each."""


class RequestEntryWrapper(msgspec.Struct, Generic[R]):
    """An entry with its size and the writer's data about it."""

    count: ClassVar[int] = 1
    """Number of entries that it represents."""

    entry: R
    """What is sent."""
    size_in_bytes: int
    """By the writer's measure."""
    number: int = 0
    """Place in the order of writing, from zero."""
    context: Context | None = None
    """Trace context of the caller that wrote it."""
    listener: EntryListener | None = None
    """Receives its outcome."""
    index: int = 0
    """Place among the entries of its listener."""
    attempts: int = 0
    """Submissions so far."""
    not_before: float = 0.0
    """Monotonic seconds until which it backs off; 0 for an entry that never failed."""
    written_at: float = 0.0
    """Monotonic seconds at which it was written."""
    forgiven: int = 0
    """Submissions that do not count against `max_attempts`: another entry caused the refusal of the request."""
    lane: str | None = None
    """Part of the destination that it goes to, if that is known."""
    holds_key: bool = False
    """Whether the next entry of its key waits for it."""
    history: list["FailedAttempt"] | None = None
    """Its latest failures, oldest first; None for an entry that never failed."""


def total_size_in_bytes(wrappers: Sequence[RequestEntryWrapper[R]]) -> int:
    """Bytes of all entries."""
    return sum(wrapper.size_in_bytes for wrapper in wrappers)


@dataclass(frozen=True)
class BufferedRequestState(Generic[R]):
    """Entries that were written and not acknowledged, with their sizes, in the order of writing."""

    entries: tuple[tuple[R, int], ...] = ()
    """(entry, bytes) pairs."""
    sink_state: bytes = b""
    """Additional state of the sink: see `AsyncSinkWriter.sink_state`."""

    @classmethod
    def of(cls, wrappers: Iterable[RequestEntryWrapper[R]], sink_state: bytes = b"") -> "BufferedRequestState[R]":
        """The state that holds these entries."""
        return cls(tuple((wrapper.entry, wrapper.size_in_bytes) for wrapper in wrappers), sink_state)


class EntryCodec(Protocol[R]):
    """Encodes and decodes one entry, and gives its size.

    `state_to_bytes` and `state_from_bytes` add the name and version of the codec and a checksum.
    """

    @property
    def name(self) -> str:
        """Identifies the states of this destination. Never changes."""

    @property
    def version(self) -> int:
        """Version of the bytes that `encode` returns, from 1; higher when they change."""

    def encode(self, entry: R) -> bytes:
        """The entry as bytes."""

    def decode(self, raw: bytes, version: int) -> R:
        """The entry that `encode` made bytes of, in this version or an older one.

        Raises:
            ValueError: the bytes do not hold an entry.
        """

    def get_size_in_bytes(self, entry: R) -> int:
        """As the writer's method of that name counts."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its chain of causes, including members of exception groups, each once."""
    pending, seen = [error], set[int]()
    while pending:
        current = pending.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            pending.extend(current.exceptions)
        if current.__cause__ is not None:
            pending.append(current.__cause__)
        elif current.__context__ is not None and not current.__suppress_context__:
            pending.append(current.__context__)


class FatalExceptionClassifier:
    """Decides which errors are permanent and which can be retried.

    `matches` is called with the error and each of its causes. `wrap` makes the error for the writer's caller, with
    the original as its cause.
    """

    def __init__(
        self,
        matches: Callable[[BaseException], bool],
        wrap: Callable[[BaseException], BaseException] = lambda error: error,
    ) -> None:
        self._rules: tuple[tuple[Callable[[BaseException], bool], Callable[[BaseException], BaseException]], ...] = (
            (matches, wrap),
        )

    @classmethod
    def of_types(
        cls,
        types: type[BaseException] | tuple[type[BaseException], ...],
        wrap: Callable[[BaseException], BaseException] = lambda error: error,
    ) -> Self:
        """Errors of these types, and errors that they caused, are fatal."""
        return cls(lambda error: isinstance(error, types), wrap)

    @classmethod
    def chain(cls, classifiers: "Sequence[FatalExceptionClassifier]") -> Self:
        """The first classifier that matches decides; an error that none matches can be retried."""
        joined = cls(lambda _: False)
        joined._rules = tuple(rule for classifier in classifiers for rule in classifier._rules)
        return joined

    def fatal_error(self, error: BaseException) -> BaseException | None:
        """The error for the writer's caller; None if the request can be retried."""
        chain = list(causes(error))
        for matches, wrap in self._rules:
            for cause in chain:
                if matches(cause):
                    wrapped = wrap(cause)
                    # A link of the chain stands below `error` already: with it as cause the chain would be a circle.
                    if wrapped.__cause__ is None and all(wrapped is not link for link in chain):
                        wrapped.__cause__ = error
                    return wrapped
        return None


EVERYTHING_IS_FATAL = FatalExceptionClassifier(lambda _: True)
