"""The writer of all sinks in this package."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.entries import EntryCodec, EntryListener
from penstock.async_sink._core.runs import Rows
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._core.writer import AsyncSinkWriter

I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes
R = TypeVar("R")


class RowContext(NamedTuple):
    """Facts about the writer that rows are converted for."""

    first_number: int
    """Number of the first row in the order of writing."""
    config: AsyncSinkConfig
    """The writer's limits."""
    in_runs: bool
    """Whether rows stay together, because neither keys nor lanes separate them."""


class EntryKind(EntryCodec[R], Protocol[R]):
    """The entries of a service: rules, columns and encoding in a saved state."""

    def measure(self, entry: R, record_number: int, /) -> int:
        """Check the rules of the service, and return the bytes as it counts them.

        Raises:
            RecordError: the entry breaks a rule of the service.
        """

    def order_key(self, entry: R, /) -> Hashable:
        """The key of an entry for an order per key; None for an entry without order."""

    def rows_of(self, batch: pa.RecordBatch, context: RowContext, /) -> Iterator[Rows[R]]:
        """The rows of a record batch, in order. All rows are checked before the first are returned.

        Raises:
            SinkOptionError: a column is missing, or of a type that cannot be read.
            RecordError: a row breaks a rule of the service, or is larger than the limit.
        """


class Destination(Protocol[R]):
    """The target of a writer: a service or a gateway."""

    @property
    def name(self) -> str:
        """For messages and metrics."""

    @property
    def kind(self) -> EntryKind[R]:
        """Its kind of entries."""

    async def open(self, writer: AsyncSinkWriter[Any, R]) -> None:
        """Open the resources that requests of the writer need. Called once.

        Raises:
            DestinationError: the destination cannot be reached or does not exist.
        """

    async def close(self) -> None:
        """Close the resources of `open`, after the last request."""

    async def submit(self, entries: Sequence[R], result_handler: ResultHandler[R]) -> None:
        """As `AsyncSinkWriter.submit_request_entries`."""


class DestinationWriter(AsyncSinkWriter[I, R], Generic[I, R]):
    """Writes elements and record batches to a destination. Created by the sinks of this package."""

    def __init__(self, target: Destination[R], config: AsyncSinkConfig | None = None, **arguments: Any) -> None:
        """As `AsyncSinkWriter`, which measures the entries of initial states."""
        self.target = target
        self._kind = target.kind
        self._measure = target.kind.measure
        super().__init__(config, destination=target.name, **arguments)
        self._submit = target.submit

    async def open_destination(self) -> None:
        """Open the destination.

        Raises:
            DestinationError: the destination cannot be reached or does not exist.
        """
        await self.target.open(self)

    async def close_destination(self) -> None:
        """Close the destination."""
        await self.target.close()

    async def submit_request_entries(self, entries: Sequence[R], result_handler: ResultHandler[R]) -> None:
        """Send the entries to the destination."""
        await self.target.submit(entries, result_handler)

    def get_size_in_bytes(self, entry: R) -> int:
        """The size as the service counts it.

        Raises:
            RecordError: the entry breaks a rule of the service.
        """
        return self._measure(entry, self._records_written)

    def get_order_key(self, entry: R) -> Hashable:
        """By the kind of entries."""
        return self._kind.order_key(entry)

    async def write_many(
        self, elements: Iterable[I] | pa.RecordBatch | pa.Table, *, listener: EntryListener | None = None
    ) -> None:
        """Write elements, or the rows of a record batch or table; the sink says which columns it has.

        A record batch is checked as a whole before any of it is written, a table batch by batch.

        Raises:
            SinkOptionError: a column is missing, or of a type that cannot be read.
            RecordError: an element or a row cannot be written; of elements, those before it are written.
            SinkError: the writer has failed.
            SinkError: NOT_ELEMENTS: as in `AsyncSinkWriter.write_many`.
        """
        if not isinstance(elements, pa.RecordBatch | pa.Table):
            await super().write_many(elements, listener=listener)
            return
        first_index = 0
        for batch in elements.to_batches() if isinstance(elements, pa.Table) else [elements]:
            context = RowContext(self.records_written, self.config, self._dispatcher.buffer.is_plain)
            for rows in self._kind.rows_of(batch, context):
                await self._write_rows(rows, listener=listener, first_index=first_index)
                first_index += len(rows.ends) - 1
