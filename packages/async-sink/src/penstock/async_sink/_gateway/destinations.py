"""Writers that all clients of a gateway share."""

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from penstock.async_sink._core.writer import AsyncSinkBase, AsyncSinkWriter
from penstock.async_sink._destinations.aws import AwsDestination
from penstock.async_sink._destinations.writer import DestinationWriter
from penstock.async_sink._gateway.feeder import Feeder
from penstock.async_sink._gateway.kinds import KINDS, KINESIS, DestinationKind
from penstock.async_sink._gateway.session import Orphanage
from penstock.async_sink.errors import DestinationError, SinkError
from penstock.aws import AwsError, AwsServiceError, BackoffPolicy, ErrorKind, account_of, classify, retry

AnySink = AsyncSinkBase[Any, Any]
AnyWriter = AsyncSinkWriter[Any, Any]
_IDLE_CHECK_SECONDS = 10.0
NOT_THERE: Final = frozenset(
    {
        "ResourceNotFoundException",
        "QueueDoesNotExist",
        "AWS.SimpleQueueService.NonExistentQueue",
        "com.amazonaws.sqs#QueueDoesNotExist",
        "InvalidArgumentException",
        "InvalidAddress",
        "ValidationException",
    }
)
"""Error codes of a service for a destination that does not exist or an invalid name."""
# Numbers of `SinkMetrics` that only grow, and that the contract has by the same names.
_COUNTED: Final = ("records_out", "bytes_out", "throttled", "rejected", "expired", "dead_lettered", "retried")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Counted:
    """Counts of all writers of a destination since the gateway's start."""

    numbers: Counter[str] = field(default_factory=Counter)
    """By their names in the contract."""
    last_failure: str = ""


@dataclass
class SharedDestination:
    """One writer, and so one rate limit, for all clients of a destination."""

    kind: DestinationKind
    name: str
    writer: AnyWriter
    feeder: Feeder
    orphanage: Orphanage
    before: Counted = field(default_factory=Counted)
    """Counts of earlier writers that failed."""
    arn: str = ""
    """ARN of the destination; empty if it is not known."""
    used_at: float = 0.0
    """When it was last needed, by the loop's clock."""
    clients: int = field(default=0)
    """Clients that are connected."""

    @property
    def account_id(self) -> str:
        """Account of the destination; empty if it is not known."""
        return account_of(self.arn)

    @contextmanager
    def client(self, client_id: str) -> Iterator[None]:
        """Count a client while it is connected."""
        _logger.info("client %s writes to %s %s", client_id, self.kind.name, self.name)
        self.clients += 1
        try:
            yield
        finally:
            self.clients -= 1
            self.used_at = asyncio.get_running_loop().time()

    def counted(self) -> Counted:
        """Counts of all of its writers."""
        metrics = self.writer.metrics
        numbers = self.before.numbers + Counter({name: getattr(metrics, name) for name in _COUNTED})
        return Counted(numbers, metrics.last_failure or self.before.last_failure)

    @property
    def is_needed(self) -> bool:
        """Whether a client is connected, or entries are not written yet."""
        return bool(
            self.clients
            or self.orphanage.entries
            or self.feeder.queued_entries
            or self.writer.buffered_entries
            or self.writer.in_flight_messages
        )

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the writer or the feeder."""
        return self.writer.failure or self.feeder.failure


class SharedDestinations:
    """Opens a writer when the first client names its destination, and replaces a failed writer for the next client.

    A destination that does not exist is not opened, and an idle destination is closed. The name and the ARN of a stream
    are one destination.
    """

    def __init__(
        self,
        make_sink: Callable[[str], AnySink],
        others: Mapping[str, Callable[[str], AnySink]] | None = None,
        *,
        max_destinations: int = 1_000,
        idle_seconds: float = 600.0,
    ) -> None:
        """`make_sink` makes the sink of a Kinesis stream; `others` has the functions for other kinds by their name.

        At most `max_destinations` are open. `expire_idle` closes a destination that was not needed for `idle_seconds`;
        a new destination that needs its place closes it at once.
        """
        self._max_destinations = max_destinations
        self._idle_seconds = idle_seconds
        self._make_sink: dict[str, Callable[[str], AnySink]] = {KINESIS: make_sink, **(others or {})}
        # By the names that clients give; two of them may be of one destination.
        self._open: dict[tuple[str, str], SharedDestination] = {}
        self._by_arn: dict[tuple[str, str], SharedDestination] = {}
        self._opening: dict[tuple[str, str], asyncio.Task[SharedDestination]] = {}
        # Not in `_open` yet, but they have their places.
        self._starting: list[SharedDestination] = []
        self._counted: dict[tuple[str, str], Counted] = {}
        self._expiring: asyncio.Task[None] | None = None

    async def get(self, kind: str, name: str) -> SharedDestination:
        """The destination, opened if necessary.

        Raises:
            SinkError: GATEWAY_CONTRACT: no such kind, or no name.
            DestinationError: the destination does not exist, or cannot be opened.
            SinkError: GATEWAY_FULL: the maximum number of destinations is open.
        """
        if kind not in self._make_sink or not name:
            known = ", ".join(sorted(self._make_sink))
            what = f"no destination {name!r} of kind {kind!r}; known: {known}, and a name"
            raise SinkError.of("GATEWAY_CONTRACT", reason=what)
        found = self._open.get((kind, name))
        if found is not None and found.failure is None:
            found.used_at = asyncio.get_running_loop().time()
            return found
        opening = self._opening.get((kind, name))
        if opening is None:
            # Not in the trace of the first client, because the destination serves all clients.
            opening = asyncio.create_task(
                self._open_anew(kind, name), name=f"gateway opens {kind} {name}", context=contextvars.Context()
            )
            self._opening[kind, name] = opening
            opening.add_done_callback(lambda opened: self._opened(kind, name, opened))
        # A client that disconnects does not cancel it: others wait for it.
        return await asyncio.shield(opening)

    def _opened(self, kind: str, name: str, opened: asyncio.Task[SharedDestination]) -> None:
        del self._opening[kind, name]
        if not opened.cancelled():
            # Retrieved, so that asyncio does not log it if all waiting clients are gone.
            opened.exception()

    async def _open_anew(self, kind: str, name: str) -> SharedDestination:
        failed = self._open.pop((kind, name), None)
        if failed is not None:
            await self._close(failed)
            self._counted[kind, failed.name] = failed.counted()
        try:
            writer = self._make_sink[kind](name).create_writer()
            await writer.__aenter__()
        except SinkError:
            raise
        except Exception as error:
            # A profile, a region or a file is missing.
            raise DestinationError(name, type(error).__name__, str(error)) from error
        try:
            arn = await _arn_of(KINDS[kind], name, writer)
        except BaseException:
            await writer.close()
            raise
        known = self._by_arn.get((kind, arn))
        # Not by the ARN alone: an emulator may return one ARN for everything.
        if known is not None and known.failure is None and _last_part(known.name) == _last_part(name):
            known.used_at = asyncio.get_running_loop().time()
            await writer.close()
            self._open[kind, name] = known
            return known
        feeder = Feeder(writer)
        feeder.open()
        before = self._counted.get((kind, name), Counted())
        destination = SharedDestination(KINDS[kind], name, writer, feeder, Orphanage(), before, arn)
        destination.used_at = asyncio.get_running_loop().time()
        if arn:
            self._by_arn[kind, arn] = destination
        self._starting.append(destination)
        try:
            # Only now: another name of a destination that is open needs no place of its own.
            await self._make_place(name)
            self._open[kind, name] = destination
        except BaseException:
            await self._close(destination)
            raise
        finally:
            self._starting = [each for each in self._starting if each is not destination]
        return destination

    async def _make_place(self, name: str) -> None:
        # This one is among those that start.
        if len({id(each) for each in (*self.all(), *self._starting)}) <= self._max_destinations:
            return
        idle = [key for key, shared in self._open.items() if not shared.is_needed]
        if not idle:
            raise SinkError.of("GATEWAY_FULL", destination=name, limit=self._max_destinations)
        await self._close_idle(min(idle, key=lambda key: self._open[key].used_at))

    async def _close_idle(self, key: tuple[str, str]) -> None:
        shared = self._open[key]
        self._counted[shared.kind.name, shared.name] = shared.counted()
        _logger.info("%s %s is closed: it was idle", shared.kind.name, shared.name)
        await self._close(shared)

    def expire_idle(self) -> None:
        """Close idle destinations in the background, until `close`."""
        if self._expiring is None:
            self._expiring = asyncio.create_task(self._expire_idle(), name="gateway idle destinations")

    async def _expire_idle(self) -> None:
        while True:
            now = asyncio.get_running_loop().time()
            for key, shared in list(self._open.items()):
                is_idle = not shared.is_needed and now - shared.used_at >= self._idle_seconds
                if is_idle and self._open.get(key) is shared:
                    await self._close_idle(key)
            await asyncio.sleep(min(_IDLE_CHECK_SECONDS, self._idle_seconds / 2))

    def all(self) -> list[SharedDestination]:
        """All destinations, ordered by kind and name, each once."""
        return list({id(self._open[key]): self._open[key] for key in sorted(self._open)}.values())

    async def close(self, timeout_seconds: float) -> None:
        """Write accepted entries, for `timeout_seconds` at most, and close the writers."""
        tasks: list[asyncio.Task[Any]] = [*self._opening.values()]
        if self._expiring is not None:
            tasks.append(self._expiring)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        destinations, self._open = self.all(), {}
        await asyncio.gather(*(self._finish(each, timeout_seconds) for each in destinations))

    async def _finish(self, shared: SharedDestination, timeout_seconds: float) -> None:
        writer = shared.writer
        try:
            if shared.failure is None:
                async with asyncio.timeout(timeout_seconds):
                    await shared.feeder.wait_until_empty()
                    await writer.flush(end_of_input=True)
        except (TimeoutError, SinkError) as error:
            # These have no acknowledgement: clients send them again.
            left = writer.buffered_entries + shared.feeder.queued_entries
            _logger.warning("%s ends with %d unwritten entries: %r", writer.destination, left, error)
        finally:
            await self._close(shared)

    async def _close(self, shared: SharedDestination) -> None:
        for by_name in (self._open, self._by_arn):
            for key in [key for key, each in by_name.items() if each is shared]:
                del by_name[key]
        await shared.feeder.close()
        await shared.writer.close()


def _last_part(name: str) -> str:
    """The last part of an ARN or a URL."""
    return name.rpartition("/")[2]


async def _arn_of(kind: DestinationKind, name: str, writer: AnyWriter) -> str:
    """The ARN of a destination; empty if it is not known.

    Raises:
        DestinationError: the destination does not exist.
    """
    service = writer.target if isinstance(writer, DestinationWriter) else None
    if kind.description is None or not isinstance(service, AwsDestination):
        return ""
    operation, parameters, path = kind.description(name)
    try:
        # Many clients may come at once, and a service describes some twenty destinations a second.
        answer = await retry(
            partial(service.describe, operation, parameters),
            BackoffPolicy(),
            is_retryable=lambda error: classify(error) is ErrorKind.THROTTLED,
        )
    except AwsServiceError as error:
        if error.code in NOT_THERE:
            message = f"{error.message} ({operation}); name a destination that exists, in the gateway's region"
            raise DestinationError(name, error.code, message) from error
        _logger.warning("cannot check whether %s %s exists; writing anyway: %s", kind.name, name, error)
        return ""
    except AwsError as error:
        # It may be available again when there are entries to write.
        _logger.warning("cannot check whether %s %s exists; writing anyway: %s", kind.name, name, error)
        return ""
    arn: str = answer[path[0]][path[1]]
    return arn
