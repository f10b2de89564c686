"""A client's connection to the gateway: opened again when it breaks, until that is hopeless."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import timedelta
from random import random as default_random

import grpc

from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._core.settlement import all_failed
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


def _is_sign_of_life(response: pb.WriteResponse) -> bool:
    credit = response.credit
    return response.WhichOneof("message") == "credit" and not (credit.entries or credit.bytes)


class GatewayConnection:
    """One stream of batches at a time. `opened`, `granted`, `progressed`, `lost` and `failed` inform the writer.

    `opened` gets the first grant of a stream, `granted` the others; an empty one is not a grant: it says that the
    destination goes on, and `progressed` is called.
    """

    def __init__(
        self,
        endpoint: str,
        security: ClientSecurity | None,
        hello: pb.Hello,
        *,
        reconnect_seconds: float,
        opened: Callable[[int, int], None],
        granted: Callable[[int, int], None],
        progressed: Callable[[], None],
        lost: Callable[[], None],
        failed: Callable[[Exception], None],
        random: Callable[[], float] = default_random,
    ) -> None:
        self._endpoint = endpoint
        self._security = security
        self._hello = hello
        self._reconnect_seconds = reconnect_seconds
        self._opened = opened
        self._granted = granted
        self._progressed = progressed
        self._lost = lost
        self._failed = failed
        self._random = random
        self._sent: dict[int, _Sent] = {}
        self._next_batch_id = 0
        self._connected = False
        # Bounded by the writer's requests in flight.
        self._outgoing: asyncio.Queue[pb.WriteRequest | None] = asyncio.Queue()
        self._channel: grpc.aio.Channel | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to connect. The caller's trace context is the parent of the stream's span."""
        self._channel = open_aio_channel(self._endpoint, self._security)
        self._task = asyncio.create_task(self._stay_connected(self._channel), name=f"sink gateway {self._endpoint}")

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

    async def send(self, entries: Sequence[pb.Entry]) -> tuple[list[EntryFailure], int]:
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
            yield pb.WriteRequest(hello=self._hello)
            while (request := await outgoing.get()) is not None:
                yield request
        finally:
            ended.set()

    async def _stay_connected(self, channel: grpc.aio.Channel) -> None:
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
                    if self._connected or _is_sign_of_life(response):
                        self._take(response)
                    else:
                        self._connected = True
                        self._opened(response.credit.entries, response.credit.bytes)
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
                self._failed(self._typed(error))
                return
            if loop.time() - gone_since >= self._reconnect_seconds:
                message = "no answer" if error is None else error.details() or ""
                code = grpc.StatusCode.UNAVAILABLE if error is None else error.code()
                self._failed(GatewayError(self._endpoint, code.name, message))
                return
            await asyncio.sleep(_BACKOFF.delay_seconds(attempts, self._random))
            attempts += 1

    def _typed(self, error: grpc.aio.AioRpcError) -> Exception:
        typed = typed_error(error, [DestinationError, LocationMismatchError])
        if typed is None:
            typed = GatewayError(self._endpoint, error.code().name, error.details() or "")
        typed.__cause__ = error
        return typed

    def _take(self, response: pb.WriteResponse) -> None:
        kind = response.WhichOneof("message")
        if kind == "credit":
            if _is_sign_of_life(response):
                self._progressed()
            else:
                self._granted(response.credit.entries, response.credit.bytes)
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
        self._lost()
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
