"""A client's connection to the gateway: opened again when it breaks, until that is hopeless."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from random import random
from typing import Any

import grpc

from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._core.settlement import ResultHandler, all_failed
from penstock.async_sink._core.writer import AsyncSinkWriter
from penstock.async_sink._gateway.credits import CreditStrategy
from penstock.async_sink._gateway.kinds import KINDS
from penstock.async_sink.errors import DestinationError, GatewayError, LocationMismatchError
from penstock.aws import BackoffPolicy
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2_grpc
from penstock.rpc import ClientSecurity, open_aio_channel, typed_error

# A gateway that restarts, drains or is overloaded, and a network that breaks. All else is for good.
_WORTH_ANOTHER_TRY = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        # Of a server that ends, and of one before which thousands of calls wait.
        grpc.StatusCode.CANCELLED,
    }
)
_BACKOFF = BackoffPolicy(base=timedelta(seconds=0.1), maximum=timedelta(seconds=5), exponent=2.0)
_CLOSE_SECONDS = 5.0
_REQUESTS_END_SECONDS = 0.1


class _Sent:
    """A batch without an answer."""

    def __init__(self, entry_count: int) -> None:
        self.entry_count = entry_count
        self.answer: asyncio.Future[tuple[list[EntryFailure], int]] = asyncio.get_running_loop().create_future()


class GatewayDestination:
    """A sink gateway as a destination: it writes at the rate that it shares out among its clients.

    There is one stream of batches at a time. The first answer of a stream grants what may be sent; an empty grant is
    none: it says that the destination is at work.
    """

    def __init__(
        self,
        endpoint: str,
        security: ClientSecurity | None,
        hello: pb.Hello,
        *,
        max_batch_size: int,
        reconnect_timeout: timedelta,
    ) -> None:
        self._endpoint = endpoint
        self._security = security
        self.hello = hello
        """The first message of each connection: what is written to, and who writes."""
        self._reconnect_seconds = reconnect_timeout.total_seconds()
        self._to_message = KINDS[hello.kind].to_message
        self.name = hello.destination
        """For messages and metrics."""
        self.kind = KINDS[hello.kind].make()
        """What its entries are."""
        self.credits = CreditStrategy(max_batch_size)
        """How fast the gateway lets the writer send."""
        self._writer: AsyncSinkWriter[Any, Any] | None = None
        self._sent: dict[int, _Sent] = {}
        self._next_batch_id = 0
        self._connected = False
        # Bounded by the writer's requests in flight.
        self._outgoing: asyncio.Queue[pb.WriteRequest | None] = asyncio.Queue()
        self._channel: grpc.aio.Channel | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, writer: AsyncSinkWriter[Any, Any]) -> None:
        """Begin to connect; entries wait in the buffer until credits come.

        The caller's trace context is the parent of the stream's span.
        """
        self._writer = writer
        self._channel = open_aio_channel(self._endpoint, self._security)
        connecting = self._stay_connected(self._channel, writer)
        self._task = asyncio.create_task(connecting, name=f"sink gateway {self._endpoint}")

    async def submit(self, entries: Sequence[Any], result_handler: ResultHandler[Any]) -> None:
        """Send a batch; what the gateway could not write permanently is rejected, what it did not answer sent again.

        Raises:
            SinkOptionError: the batch is larger than all that the gateway grants.
        """
        self.credits.check()
        assert self._writer is not None
        metrics = self._writer.metrics
        failures, retries = await self._send(list(map(self._to_message, entries)))
        metrics.retried += retries
        result_handler.retry_failures(failures)

    async def close(self) -> None:
        """Close the stream in good order, or cut it if batches have no answer or the gateway is silent."""
        task, self._task = self._task, None
        if task is not None:
            self._outgoing.put_nowait(None)
            if self._connected and not self._sent:
                await asyncio.wait({task}, timeout=_CLOSE_SECONDS)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)
        self._writer = None

    async def _send(self, entries: Sequence[pb.Entry]) -> tuple[list[EntryFailure], int]:
        """Send a batch and wait for the gateway's word: (failures, submissions beyond the first)."""
        if not self._connected:
            return all_failed(len(entries), code=grpc.StatusCode.UNAVAILABLE.name), 0
        batch_id = self._next_batch_id
        self._next_batch_id += 1
        batch = pb.Batch(batch_id=batch_id, entries=entries)
        sent = self._sent[batch_id] = _Sent(len(entries))
        self._outgoing.put_nowait(pb.WriteRequest(batch=batch))
        return await sent.answer

    async def _requests(
        self, outgoing: "asyncio.Queue[pb.WriteRequest | None]", ended: asyncio.Event
    ) -> AsyncGenerator[pb.WriteRequest, None]:
        try:
            yield pb.WriteRequest(hello=self.hello)
            while (request := await outgoing.get()) is not None:
                yield request
        finally:
            ended.set()

    async def _stay_connected(self, channel: grpc.aio.Channel, writer: AsyncSinkWriter[Any, Any]) -> None:
        stub: sink_gateway_pb2_grpc.SinkGatewayServiceAsyncStub = sink_gateway_pb2_grpc.SinkGatewayServiceStub(channel)
        loop = asyncio.get_running_loop()
        attempts, gone_since = 0, loop.time()
        while True:
            outgoing = self._outgoing = asyncio.Queue()
            requests_ended = asyncio.Event()
            requests = self._requests(outgoing, requests_ended)
            error: grpc.aio.AioRpcError | None = None
            try:
                async for response in stub.Write(requests):
                    self._take(response, writer)
                    attempts, gone_since = 0, loop.time()
            except grpc.aio.AioRpcError as raised:
                error = raised
            finally:
                if self._connected:
                    gone_since = loop.time()
                self._disconnected(error)
                # gRPC still waits for a request: without one it would do so until the loop is gone.
                outgoing.put_nowait(None)
            await _finish(requests, requests_ended)
            if error is None and self._task is None:
                return
            if error is not None and error.code() not in _WORTH_ANOTHER_TRY:
                writer.fail(self._typed(error))
                return
            if loop.time() - gone_since >= self._reconnect_seconds:
                message = "no answer" if error is None else error.details() or ""
                code = grpc.StatusCode.UNAVAILABLE if error is None else error.code()
                writer.fail(GatewayError(self._endpoint, code.name, message))
                return
            await asyncio.sleep(_BACKOFF.delay_seconds(attempts, random))
            attempts += 1

    def _typed(self, error: grpc.aio.AioRpcError) -> Exception:
        typed = typed_error(error, [DestinationError, LocationMismatchError])
        if typed is None:
            typed = GatewayError(self._endpoint, error.code().name, error.details() or "")
        typed.__cause__ = error
        return typed

    def _take(self, response: pb.WriteResponse, writer: AsyncSinkWriter[Any, Any]) -> None:
        kind, credit = response.WhichOneof("message"), response.credit
        if kind == "credit" and not (credit.entries or credit.bytes):
            writer.metrics.signs_of_life += 1
        elif not self._connected or kind == "credit":
            grant = self.credits.grant if self._connected else self.credits.open
            self._connected = True
            grant(credit.entries, credit.bytes)
            writer.wake()
        elif kind == "acknowledgement":
            self._answer(response.acknowledgement.batch_id, [], response.acknowledgement.retries)
        elif kind == "failure":
            failures = [
                EntryFailure(failed.index, failed.error_code, failed.error_message, throttled=False, final=True)
                for failed in response.failure.failed_entries
            ]
            self._answer(response.failure.batch_id, failures, 0)

    def _answer(self, batch_id: int, failures: list[EntryFailure], retries: int) -> None:
        sent = self._sent.pop(batch_id, None)
        if sent is not None and not sent.answer.done():
            sent.answer.set_result((failures, retries))

    def _disconnected(self, error: grpc.aio.AioRpcError | None) -> None:
        """What has no answer is sent again, although the gateway may have written it."""
        self._connected = False
        self.credits.revoke()
        code = (error.code() if error is not None else grpc.StatusCode.UNAVAILABLE).name
        unanswered, self._sent = self._sent, {}
        for sent in unanswered.values():
            if not sent.answer.done():
                sent.answer.set_result((all_failed(sent.entry_count, code=code), 0))


async def _finish(requests: AsyncGenerator[pb.WriteRequest, None], ended: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(_REQUESTS_END_SECONDS):
            await ended.wait()
    except TimeoutError:
        # gRPC gave up between two requests, or before the first one.
        with contextlib.suppress(RuntimeError):
            await requests.aclose()
