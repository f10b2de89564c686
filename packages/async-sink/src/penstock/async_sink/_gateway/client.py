"""The gateway as a sink, and the client's connection to it, which reconnects."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from datetime import timedelta
from random import random
from typing import Any

import grpc

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.entries import BufferedRequestState, EntryFailure
from penstock.async_sink._core.settlement import ResultHandler, all_failed
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._core.writer import AsyncSinkBase, AsyncSinkWriter
from penstock.async_sink._destinations.aws import named, of_type
from penstock.async_sink._destinations.writer import DestinationWriter
from penstock.async_sink._gateway.kinds import KINDS, KINESIS
from penstock.async_sink._gateway.session import CreditStrategy
from penstock.async_sink.errors import DestinationError, GatewayError, LocationMismatchError, SinkOptionError
from penstock.aws import AwsLocation, BackoffPolicy
from penstock.proto.aws.v1.aws_pb2 import AwsLocation as AwsLocationMessage
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2_grpc
from penstock.rpc import ClientSecurity, open_aio_channel, typed_error

# The gateway restarts, drains or is overloaded, or the network failed. All other errors are permanent.
_WORTH_ANOTHER_TRY = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        # A server that stops, or that has thousands of waiting calls, returns it.
        grpc.StatusCode.CANCELLED,
    }
)
_logger = logging.getLogger(__name__)
_BACKOFF = BackoffPolicy(base=timedelta(seconds=0.1), maximum=timedelta(seconds=5), exponent=2.0)
_CLOSE_SECONDS = 5.0
_REQUESTS_END_SECONDS = 0.1


class _Sent:
    """A batch without an answer."""

    def __init__(self, entry_count: int) -> None:
        self.entry_count = entry_count
        self.answer: asyncio.Future[tuple[list[EntryFailure], int]] = asyncio.get_running_loop().create_future()


class GatewayDestination:
    """A sink gateway as a destination, which shares its rate among its clients.

    There is one stream of batches at a time. The first answer of a stream grants credits. An empty grant adds no
    credits; it shows that the destination is working.
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
        """The first message of each connection: the destination and the client."""
        self._reconnect_seconds = reconnect_timeout.total_seconds()
        self._to_message = KINDS[hello.kind].to_message
        self.name = hello.destination
        """For messages and metrics."""
        self.kind = KINDS[hello.kind].make()
        """Its kind of entries."""
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
        """Start to connect; entries wait in the buffer until credits arrive.

        The caller's trace context is the parent of the stream's span.
        """
        self._writer = writer
        self._channel = open_aio_channel(self._endpoint, self._security)
        connecting = self._stay_connected(self._channel, writer)
        self._task = asyncio.create_task(connecting, name=f"sink gateway {self._endpoint}")

    async def submit(self, entries: Sequence[Any], result_handler: ResultHandler[Any]) -> None:
        """Send a batch. Entries that the gateway could not write are rejected; unanswered entries are sent again.

        Raises:
            SinkOptionError: the batch is larger than the gateway's whole grant.
        """
        self.credits.check()
        assert self._writer is not None
        metrics = self._writer.metrics
        failures, retries = await self._send(list(map(self._to_message, entries)))
        metrics.retried += retries
        result_handler.retry_failures(failures)

    async def close(self) -> None:
        """Close the stream, or cancel it if batches have no answer or the gateway is silent."""
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
        """Send a batch and wait for the answer: (failures, submissions beyond the first)."""
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
        attempts, gone_since, next_log = 0, loop.time(), 0.0
        while True:
            outgoing = self._outgoing = asyncio.Queue()
            requests_ended = asyncio.Event()
            requests = self._requests(outgoing, requests_ended)
            error: grpc.aio.AioRpcError | None = None
            try:
                async for response in stub.Write(requests):
                    self._take(response, writer)
                    attempts, gone_since, next_log = 0, loop.time(), 0.0
            except grpc.aio.AioRpcError as raised:
                error = raised
            finally:
                if self._connected:
                    gone_since = loop.time()
                self._disconnected(error)
                # gRPC still waits for a request; without one it would wait until the loop ends.
                outgoing.put_nowait(None)
            await _finish(requests, requests_ended)
            if error is None and self._task is None:
                return
            if error is not None and not self._may_pass(error):
                writer.fail(self._typed(error))
                return
            gone_seconds = loop.time() - gone_since
            if gone_seconds >= self._reconnect_seconds:
                message = "no answer" if error is None else error.details() or ""
                code = grpc.StatusCode.UNAVAILABLE if error is None else error.code()
                writer.fail(GatewayError(self._endpoint, code.name, message))
                return
            if error is not None and error.code() is grpc.StatusCode.UNAUTHENTICATED and gone_seconds >= next_log:
                # After 0, 1, 3, 7 seconds and so on.
                next_log = 2 * gone_seconds + 1.0
                _logger.warning(
                    "sink gateway %s refuses the token, which is read from its file and sent again for up to %g s: %s",
                    self._endpoint,
                    self._reconnect_seconds,
                    error.details(),
                )
            await asyncio.sleep(_BACKOFF.delay_seconds(attempts, random))
            attempts += 1

    def _may_pass(self, error: grpc.aio.AioRpcError) -> bool:
        """Whether another attempt may succeed: the token files of both ends are not replaced at the same moment."""
        is_renewed = self._security is not None and self._security.may_be_renewed(error)
        return is_renewed or error.code() in _WORTH_ANOTHER_TRY

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
        """Send unanswered batches again, although the gateway may have written them."""
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
        # gRPC failed between two requests, or before the first one.
        with contextlib.suppress(RuntimeError):
            await requests.aclose()


class RemoteSink(AsyncSinkBase[Any, Any]):
    """Writes to a destination through a sink gateway, at least once. All clients share one rate limit.

    Can be pickled together with its token: keep it within the application.

    Raises:
        SinkOptionError: the kind of destination is not known, or an option has the wrong type.
    """

    def __init__(
        self,
        endpoint: str,
        security: ClientSecurity | None = None,
        *,
        destination: str,
        kind: str = KINESIS,
        client_id: str = "",
        weight: int = 1,
        config: AsyncSinkConfig | None = None,
        reconnect_timeout: timedelta = timedelta(minutes=2),
        terminal: Callable[[], TerminalRecordHandler] | None = None,
        caller: AwsLocation | None = None,
    ) -> None:
        """Describe the gateway at `host:port`, and the destination behind it.

        `kind` is `kinesis`, `firehose`, `dynamodb` or `sqs`; `destination` the name or ARN of the stream, the name of
        the delivery stream or table, the URL of the queue. `weight` is the share of turns against other clients';
        writers with one `client_id` share theirs. `reconnect_timeout` is how long a gateway may be gone, or refuse the
        token of a `token_file`, before writers fail. `terminal` makes the handler of each writer for records that the
        gateway gave up; without it they end the writer. `caller` says where the destination is: a
        gateway that would write to another region, account or endpoint refuses it.
        """
        if kind not in KINDS:
            raise SinkOptionError("kind", f"{kind!r} is not known; known: {', '.join(KINDS)}")
        named("endpoint", endpoint)
        named("destination", destination)
        for name, option, option_type in (("security", security, ClientSecurity), ("config", config, AsyncSinkConfig)):
            if option is not None:
                of_type(name, option, option_type)
        if weight < 1:
            raise SinkOptionError("weight", f"{weight} must be at least 1")
        self._kind = kind
        self._weight = weight
        self._endpoint = endpoint
        self._security = security
        self._destination = destination
        self._client_id = client_id
        self._config = config or KINDS[kind].config()
        self._reconnect_timeout = reconnect_timeout
        self._terminal = terminal
        self._caller = caller

    def create_writer(self) -> DestinationWriter[Any, Any]:
        """A writer with an empty buffer and a connection of its own."""
        return self.restore_writer(())

    def restore_writer(self, states: Iterable[BufferedRequestState[Any]]) -> DestinationWriter[Any, Any]:
        """A writer that starts with the entries of saved states."""
        hello = pb.Hello(
            kind=self._kind,
            destination=self._destination,
            client_id=self._client_id or f"{socket.gethostname()}:{os.getpid()}",
            weight=self._weight,
            takes_signs_of_life_first=True,
            caller=None if self._caller is None else AwsLocationMessage(**vars(self._caller)),
        )
        gateway = GatewayDestination(
            self._endpoint,
            self._security,
            hello,
            max_batch_size=self._config.max_batch_size,
            reconnect_timeout=self._reconnect_timeout,
        )
        return DestinationWriter(
            gateway,
            self._config,
            strategy=gateway.credits,
            initial_states=states,
            terminal=None if self._terminal is None else self._terminal(),
        )
