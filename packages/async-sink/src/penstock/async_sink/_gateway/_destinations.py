"""The writers that all clients of a gateway share."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.async_sink._kinesis._entry import KinesisRequestEntry
from penstock.async_sink._sink import AsyncSinkBase
from penstock.async_sink._writer import AsyncSinkWriter
from penstock.async_sink.errors import GatewayProtocolError, SinkError

KinesisSink = AsyncSinkBase[KinesisRequestEntry, KinesisRequestEntry]
KinesisWriter = AsyncSinkWriter[KinesisRequestEntry, KinesisRequestEntry]
KINESIS = "kinesis"
_logger = logging.getLogger(__name__)


@dataclass
class SharedDestination:
    """One writer, and so one rate limit, for all clients of a destination."""

    kind: str
    name: str
    writer: KinesisWriter
    clients: int = 0
    """Clients that are connected."""

    @contextmanager
    def client(self, client_id: str) -> Iterator[None]:
        """Count a client while it is connected."""
        _logger.info("client %s writes to %s %s", client_id, self.kind, self.name)
        self.clients += 1
        try:
            yield
        finally:
            self.clients -= 1


class SharedDestinations:
    """Opens a writer when the first client names its destination; a failed one is replaced for the next client."""

    def __init__(self, make_sink: Callable[[str], KinesisSink]) -> None:
        """`make_sink` makes the sink of a stream name."""
        self._make_sink = make_sink
        self._open: dict[tuple[str, str], SharedDestination] = {}
        self._opening = asyncio.Lock()

    async def get(self, kind: str, name: str) -> SharedDestination:
        """The destination, opened if need be.

        Raises:
            GatewayProtocolError: no such kind, or no name.
        """
        if kind != KINESIS or not name:
            raise GatewayProtocolError(f"no destination {name!r} of kind {kind!r}; known: kinesis, and a stream")
        async with self._opening:
            found = self._open.get((kind, name))
            if found is not None and found.writer.failure is None:
                return found
            if found is not None:
                await found.writer.close()
            writer = self._make_sink(name).create_writer()
            await writer.__aenter__()
            destination = self._open[kind, name] = SharedDestination(kind, name, writer)
            return destination

    def all(self) -> list[SharedDestination]:
        """Ordered by kind and name."""
        return [self._open[key] for key in sorted(self._open)]

    async def close(self, timeout_seconds: float) -> None:
        """Write what is buffered, for that long at most, and close the writers."""
        destinations, self._open = self.all(), {}
        await asyncio.gather(*(self._finish(each.writer, timeout_seconds) for each in destinations))

    async def _finish(self, writer: KinesisWriter, timeout_seconds: float) -> None:
        try:
            if writer.failure is None:
                async with asyncio.timeout(timeout_seconds):
                    await writer.flush(end_of_input=True)
        except (TimeoutError, SinkError) as error:
            # Nobody was told that these are written: their clients send them again.
            _logger.warning("%s ends with %d unwritten entries: %r", writer.destination, writer.buffered_entries, error)
        finally:
            await writer.close()
