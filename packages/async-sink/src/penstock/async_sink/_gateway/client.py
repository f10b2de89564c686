"""The gateway as a sink: the same calls, the other home."""

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from penstock.async_sink._config import AsyncSinkConfig, Ordering
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._core.state import BufferedRequestState
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._core.writer import AsyncSinkBase, AsyncSinkWriter
from penstock.async_sink._destinations.dynamodb.writer import DynamoDbEntryWriter, dynamodb_config
from penstock.async_sink._destinations.firehose import FirehoseEntryWriter, firehose_config
from penstock.async_sink._destinations.kinesis.writer import KinesisEntryWriter
from penstock.async_sink._destinations.sqs.writer import SqsEntryWriter, sqs_config
from penstock.async_sink._gateway.connection import GatewayConnection
from penstock.async_sink._gateway.credits import CreditStrategy
from penstock.async_sink._gateway.kinds import DYNAMODB, FIREHOSE, KINDS, KINESIS, SQS
from penstock.async_sink.errors import SinkOptionError
from penstock.aws import AwsLocation
from penstock.proto.aws.v1.aws_pb2 import AwsLocation as AwsLocationMessage
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb
from penstock.rpc import ClientSecurity


class _ThroughGateway(AsyncSinkWriter[Any, Any]):
    """Sends entries to a sink gateway, which writes them at the rate that it shares out."""

    def __init__(
        self,
        endpoint: str,
        security: ClientSecurity | None,
        hello: pb.Hello,
        *,
        config: AsyncSinkConfig,
        reconnect_timeout: timedelta,
        **arguments: Any,
    ) -> None:
        self._endpoint = endpoint
        self._security = security
        self._hello = hello
        self._to_message = KINDS[hello.kind].to_message
        self._reconnect_seconds = reconnect_timeout.total_seconds()
        self._credits = CreditStrategy(config.max_batch_size)
        self._connection: GatewayConnection | None = None
        super().__init__(config, destination=hello.destination, strategy=self._credits, **arguments)

    async def open_destination(self) -> None:
        """Begin to connect; entries wait in the buffer until credits come."""
        self._connection = GatewayConnection(
            self._endpoint,
            self._security,
            self._hello,
            reconnect_seconds=self._reconnect_seconds,
            opened=self._opened,
            granted=self._granted,
            lost=self._credits.revoke,
            failed=self.fail,
        )
        self._connection.open()

    async def close_destination(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _opened(self, entries: int, size_in_bytes: int) -> None:
        self._credits.open(entries, size_in_bytes)
        self.wake()

    def _granted(self, entries: int, size_in_bytes: int) -> None:
        self._credits.grant(entries, size_in_bytes)
        self.wake()

    async def submit_request_entries(self, entries: Sequence[Any], result_handler: ResultHandler[Any]) -> None:
        """Send a batch; what the gateway could not write for good is rejected, what it did not answer sent again.

        Raises:
            SinkOptionError: the batch is larger than all that the gateway grants.
        """
        self._credits.check()
        assert self._connection is not None
        failures, retries = await self._connection.send(list(map(self._to_message, entries)))
        self.metrics.retried += retries
        result_handler.retry_failures(failures)


class RemoteWriter(_ThroughGateway, KinesisEntryWriter):
    """Writes to a stream through a sink gateway. Made by `RemoteSink`."""


class RemoteFirehoseWriter(_ThroughGateway, FirehoseEntryWriter[Any]):
    """Writes to a delivery stream through a sink gateway. Made by `RemoteSink`."""


class RemoteDynamoDbWriter(_ThroughGateway, DynamoDbEntryWriter[Any]):
    """Writes to a table through a sink gateway. Made by `RemoteSink`."""


class RemoteSqsWriter(_ThroughGateway, SqsEntryWriter[Any]):
    """Writes to a queue through a sink gateway. Made by `RemoteSink`."""


AnyRemoteWriter = RemoteWriter | RemoteFirehoseWriter | RemoteDynamoDbWriter | RemoteSqsWriter
_WRITERS: dict[str, type[AnyRemoteWriter]] = {
    KINESIS: RemoteWriter,
    FIREHOSE: RemoteFirehoseWriter,
    DYNAMODB: RemoteDynamoDbWriter,
    SQS: RemoteSqsWriter,
}
_CONFIGS: dict[str, Callable[[], AsyncSinkConfig]] = {
    KINESIS: AsyncSinkConfig,
    FIREHOSE: firehose_config,
    DYNAMODB: dynamodb_config,
    SQS: sqs_config,
}


class RemoteSink(AsyncSinkBase[Any, Any]):
    """Writes to a destination through a sink gateway, at least once: its one rate limit is shared by all clients.

    Can be pickled, with its token: keep it within the application.

    Raises:
        SinkOptionError: the kind of destination is not known.
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
        wait_until_written: bool = False,
        config: AsyncSinkConfig | None = None,
        reconnect_timeout: timedelta = timedelta(minutes=2),
        terminal: Callable[[], TerminalRecordHandler] | None = None,
        caller: AwsLocation | None = None,
    ) -> None:
        """Describe the gateway at `host:port`, and the destination behind it.

        `kind` is `kinesis`, `firehose`, `dynamodb` or `sqs`; `destination` the name or ARN of the stream, the name of
        the delivery stream or table, the URL of the queue. `weight` is the share of turns against other clients';
        writers with one `client_id` share theirs. With a durable gateway, batches are acknowledged when they are on its
        disk, or with `wait_until_written` when the destination has accepted them, as always where an order is kept.
        `reconnect_timeout` is how long a gateway may be gone before writers fail. `terminal` makes the handler of each
        writer for records that the gateway could not write for good; without it they end the writer. `caller` says
        where the destination is: a gateway that would write to another region, account or endpoint refuses it.
        """
        if kind not in _WRITERS:
            raise SinkOptionError("kind", f"{kind!r} is not known; known: {', '.join(_WRITERS)}")
        if weight < 1:
            raise SinkOptionError("weight", f"{weight} must be at least 1")
        self._kind = kind
        self._weight = weight
        self._wait_until_written = wait_until_written
        self._endpoint = endpoint
        self._security = security
        self._destination = destination
        self._client_id = client_id
        self._config = config or _CONFIGS[kind]()
        self._reconnect_timeout = reconnect_timeout
        self._terminal = terminal
        self._caller = caller

    def create_writer(self) -> AnyRemoteWriter:
        """A writer with an empty buffer and a connection of its own."""
        return self.restore_writer(())

    def restore_writer(self, states: Iterable[BufferedRequestState[Any]]) -> AnyRemoteWriter:
        """A writer that begins with what others left behind."""
        hello = pb.Hello(
            kind=self._kind,
            destination=self._destination,
            client_id=self._client_id or f"{socket.gethostname()}:{os.getpid()}",
            weight=self._weight,
            # What is on the gateway's disk may yet fail there, and be overtaken by what was sent after it.
            wait_until_written=self._wait_until_written or self._config.ordering is not Ordering.NONE,
            caller=None if self._caller is None else AwsLocationMessage(**vars(self._caller)),
        )
        return _WRITERS[self._kind](
            self._endpoint,
            self._security,
            hello,
            config=self._config,
            reconnect_timeout=self._reconnect_timeout,
            initial_states=states,
            terminal=None if self._terminal is None else self._terminal(),
        )
