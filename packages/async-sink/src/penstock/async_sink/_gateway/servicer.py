"""The gateway's side of the contract."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import grpc

from penstock.async_sink._gateway.destinations import SharedDestination, SharedDestinations
from penstock.async_sink._gateway.kinds import KINDS
from penstock.async_sink._gateway.session import ClientSession, CreditWindow
from penstock.async_sink.errors import (
    DestinationError,
    LocationMismatchError,
    RecordError,
    SinkError,
)
from penstock.aws import AwsError, AwsLocation
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2_grpc
from penstock.rpc import StatusTable, abort_with, cut_page


class UntilStopped:
    """Reads requests until the stream ends or the gateway drains."""

    def __init__(self, requests: AsyncIterator[pb.WriteRequest], stop: asyncio.Event) -> None:
        self._requests = requests
        self._stop = stop
        self.stopped = False
        self._request: pb.WriteRequest | None = None

    async def next(self) -> pb.WriteRequest | None:
        """The next request; None at the end, or when the gateway drains."""
        # The client sends a request again that was read but not accepted.
        return self._request if await self.unless_stopped(self._read()) else None

    async def _read(self) -> None:
        self._request = await anext(self._requests, None)

    async def unless_stopped(self, awaitable: Awaitable[Any]) -> bool:
        """Wait for the awaitable; if the gateway drains first, cancel it and return False.

        Raises:
            Exception: any error of the awaitable.
        """
        wanted = asyncio.ensure_future(awaitable)
        stop = asyncio.create_task(self._stop.wait(), name="gateway drain")
        try:
            await asyncio.wait({wanted, stop}, return_when=asyncio.FIRST_COMPLETED)
            self.stopped = self._stop.is_set()
            if self.stopped:
                return False
            wanted.result()
            return True
        finally:
            for task in (wanted, stop):
                task.cancel()
            await asyncio.gather(wanted, stop, return_exceptions=True)


SERVICE_NAME = pb.DESCRIPTOR.services_by_name["SinkGatewayService"].full_name

STATUS_OF_ERROR: StatusTable = {
    RecordError: grpc.StatusCode.INVALID_ARGUMENT,
    DestinationError: grpc.StatusCode.FAILED_PRECONDITION,
    LocationMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    SinkError: grpc.StatusCode.INTERNAL,
    "GATEWAY_DRAINING": grpc.StatusCode.UNAVAILABLE,
    "GATEWAY_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "GATEWAY_CREDITS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "GATEWAY_CONTRACT": grpc.StatusCode.INVALID_ARGUMENT,
}
STATUS_OF_CODE = {
    "ResourceNotFoundException": grpc.StatusCode.NOT_FOUND,
    "QueueDoesNotExist": grpc.StatusCode.NOT_FOUND,
    "AWS.SimpleQueueService.NonExistentQueue": grpc.StatusCode.NOT_FOUND,
    "AccessDenied": grpc.StatusCode.PERMISSION_DENIED,
    "AccessDeniedException": grpc.StatusCode.PERMISSION_DENIED,
    "UnrecognizedClientException": grpc.StatusCode.PERMISSION_DENIED,
    "InvalidSignatureException": grpc.StatusCode.PERMISSION_DENIED,
    "InvalidArgumentException": grpc.StatusCode.INVALID_ARGUMENT,
    "ValidationException": grpc.StatusCode.INVALID_ARGUMENT,
}


class SinkGatewayServicer(sink_gateway_pb2_grpc.SinkGatewayServiceServicer):
    """Writes the batches of many clients through one writer per destination."""

    def __init__(
        self,
        destinations: SharedDestinations,
        window: CreditWindow | None = None,
        *,
        max_weight: int = 16,
        location: Callable[[str], AwsLocation] | None = None,
        endpoint_aliases: Sequence[str] = (),
        progress_interval: timedelta = timedelta(seconds=1),
    ) -> None:
        """`max_weight` is the largest weight of a client.

        `location` returns the location of the destinations of a kind, to compare it with the client's; it may block.
        `endpoint_aliases` are other URLs that clients use for these endpoints. A client with an unanswered batch, or
        that waits for its first credits, gets a message each `progress_interval` if the destination is working.
        """
        self._location = location
        self._endpoint_aliases = endpoint_aliases
        self._destinations = destinations
        self._window = window or CreditWindow()
        self._max_weight = max_weight
        self._progress_seconds = progress_interval.total_seconds()
        self._draining = asyncio.Event()
        self._sessions: set[ClientSession] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add the servicer to a server."""
        sink_gateway_pb2_grpc.add_SinkGatewayServiceServicer_to_server(self, server)

    async def drain(self, timeout_seconds: float) -> None:
        """Accept no more batches; wait up to `timeout_seconds` until accepted batches are written and acknowledged.

        After that, streams with unwritten batches end, and their clients send the batches to a successor.
        """
        self._draining.set()
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._sessions:
                    await next(iter(self._sessions)).ended.wait()
        except TimeoutError:
            for session in self._sessions:
                session.fail(SinkError.of("GATEWAY_DRAINING", destination="destinations that are slow"))

    async def Write(  # the contract's name
        self, request_iterator: AsyncIterator[pb.WriteRequest], context: Any
    ) -> AsyncIterator[pb.WriteResponse]:
        """Batches in, credits and acknowledgements out."""
        session = ClientSession(self._window)
        self._sessions.add(session)
        reader = asyncio.create_task(self._read(request_iterator, session), name="gateway reader")
        try:
            while (answer := await session.next_answer()) is not None:
                yield answer
            if session.error is not None:
                await _abort(context, session.error)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            self._sessions.discard(session)
            session.end()

    async def _read(self, requests: AsyncIterator[pb.WriteRequest], session: ClientSession) -> None:
        try:
            await self._accept_batches(UntilStopped(requests, self._draining), session)
        except SinkError as error:
            session.fail(error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            session.fail(error)
            raise

    async def _accept_batches(self, requests: UntilStopped, session: ClientSession) -> None:
        first = await requests.next()
        name = first.hello.destination if first is not None else ""
        if first is None:
            if requests.stopped:
                raise SinkError.of("GATEWAY_DRAINING", destination=name)
            session.end_reading()
            return
        if first.WhichOneof("message") != "hello":
            raise SinkError.of("GATEWAY_CONTRACT", reason="the first request must be hello")
        await self._check_location(first.hello)
        shared = await self._destinations.get(first.hello.kind, name)
        _refuse_mismatch(first.hello, AwsLocation(account_id=shared.account_id))
        saying = asyncio.create_task(self._say_progress(shared, session), name="gateway progress")
        try:
            session.awaits_credit = first.hello.takes_signs_of_life_first
            if not await requests.unless_stopped(shared.orphanage.wait_for_room(self._window)):
                raise SinkError.of("GATEWAY_DRAINING", destination=name)
            session.open_credit(shared.orphanage)
            with shared.client(first.hello.client_id):
                while (request := await requests.next()) is not None:
                    if request.WhichOneof("message") != "batch":
                        raise SinkError.of("GATEWAY_CONTRACT", reason="only the first request may be hello")
                    self._write(request.batch, first.hello, shared, session)
                session.end_reading()
                await session.wait_until_settled()
        finally:
            saying.cancel()
        if requests.stopped:
            raise SinkError.of("GATEWAY_DRAINING", destination=name)

    async def _say_progress(self, shared: SharedDestination, session: ClientSession) -> None:
        """Show clients that the destination is working: a batch is answered only when its last entry is settled, and a
        slow gateway would look like one that hangs."""
        metrics = shared.writer.metrics

        def signs_of_life() -> int:
            return metrics.records_out + metrics.throttled + metrics.rejected + metrics.signs_of_life

        before = signs_of_life()
        while True:
            await asyncio.sleep(self._progress_seconds)
            if before != (before := signs_of_life()):
                session.say_progress()

    async def _check_location(self, hello: pb.Hello) -> None:
        """Refuse a client whose location differs.

        Raises:
            LocationMismatchError: its region, endpoint or account is not the gateway's.
            DestinationError: the gateway does not know its own region.
        """
        if self._location is None or not hello.HasField("caller") or hello.kind not in KINDS:
            return
        try:
            location = await asyncio.to_thread(self._location, hello.kind)
        except AwsError as error:
            raise DestinationError(hello.destination, type(error).__name__, str(error)) from error
        _refuse_mismatch(hello, location, self._endpoint_aliases)

    def _write(self, batch: pb.Batch, hello: pb.Hello, shared: SharedDestination, session: ClientSession) -> None:
        if shared.failure is not None:
            raise shared.failure
        if not batch.entries:
            raise SinkError.of("GATEWAY_CONTRACT", reason=f"batch {batch.batch_id} is empty")
        entries, sizes = shared.kind.from_messages(batch.entries)
        size = sum(sizes)
        tracker = session.accept(batch.batch_id, len(entries), size)
        weight = min(max(1, hello.weight), self._max_weight)
        shared.feeder.add(hello.client_id, entries, size, tracker, weight=weight)

    async def Stats(  # the contract's name
        self, request: pb.StatsRequest, context: Any
    ) -> pb.StatsResponse:
        """Numbers about the destinations."""
        try:
            return cut_page(pb.StatsResponse(), map(_stats, self._destinations.all()), request)
        except ValueError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "page_token was not made by this service")
            raise


def _refuse_mismatch(hello: pb.Hello, location: AwsLocation, aliases: Sequence[str] = ()) -> None:
    """Refuse a client that means a destination in another region, account or endpoint.

    Raises:
        LocationMismatchError: a fact that both sides know differs.
    """
    caller = AwsLocation(
        region=hello.caller.region,
        # The ARN of a stream identifies it, also in another account.
        account_id="" if hello.destination.startswith("arn:") else hello.caller.account_id,
        endpoint_url=hello.caller.endpoint_url,
    )
    different = caller.mismatch(location, aliases)
    if different is not None:
        raise LocationMismatchError(
            destination=f"{hello.kind} {hello.destination}",
            fact=different.fact,
            caller=different.caller,
            found=different.service,
        )


def _stats(shared: SharedDestination) -> pb.DestinationStats:
    writer, counted = shared.writer, shared.counted()
    gauges = writer.gauges()
    held = gauges.held
    return pb.DestinationStats(
        kind=shared.kind.name,
        destination=shared.name,
        clients=shared.clients,
        in_flight_requests=writer.in_flight_requests,
        in_flight_messages=writer.in_flight_messages,
        limit_messages=gauges.limit or 0,
        buffered_entries=writer.buffered_entries,
        queued_entries=shared.feeder.queued_entries,
        last_failure=counted.last_failure,
        held_seconds=gauges.held_seconds,
        held_reason="" if held is None else held.reason,
        held_attempts=0 if held is None else held.attempts,
        held_error_code="" if held is None else held.error_code,
        **counted.numbers,
    )


async def _abort(context: Any, error: BaseException) -> NoReturn:
    if isinstance(error, DestinationError):
        status = STATUS_OF_CODE.get(error.code, STATUS_OF_ERROR[DestinationError])
        # Record numbers of the shared writer have no meaning for a client.
        without_record = DestinationError(error.destination, error.code, error.message)
        await abort_with(context, without_record, {DestinationError: status})
    if not isinstance(error, Exception):
        raise error
    await abort_with(context, error, STATUS_OF_ERROR)
