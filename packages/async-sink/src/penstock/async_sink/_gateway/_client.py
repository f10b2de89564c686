"""The gateway as a sink: the same calls, the other home."""

import os
import socket
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._gateway._connection import GatewayConnection
from penstock.async_sink._gateway._credits import CreditStrategy
from penstock.async_sink._gateway._destinations import KINESIS
from penstock.async_sink._kinesis._entry import KinesisRequestEntry
from penstock.async_sink._kinesis._writer import KinesisEntryWriter
from penstock.async_sink._result import ResultHandler
from penstock.async_sink._sink import AsyncSinkBase
from penstock.async_sink._state import BufferedRequestState
from penstock.async_sink.errors import SinkOptionError
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb
from penstock.rpc import ClientSecurity


class RemoteWriter(KinesisEntryWriter):
    """Sends entries to a sink gateway, which writes them at the rate that it shares out. Made by `RemoteSink`."""

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

    def _granted(self, entries: int, size_in_bytes: int) -> None:
        self._credits.grant(entries, size_in_bytes)
        self.wake()

    async def submit_request_entries(
        self,
        entries: Sequence[KinesisRequestEntry],
        result_handler: ResultHandler[KinesisRequestEntry],
    ) -> None:
        """Send a batch; what the gateway could not write for good is rejected, what it did not answer sent again."""
        assert self._connection is not None
        failures, retries = await self._connection.send(entries)
        self.metrics.retried += retries
        result_handler.retry_failures(failures)


class RemoteSink(AsyncSinkBase[KinesisRequestEntry, KinesisRequestEntry]):
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
        config: AsyncSinkConfig | None = None,
        reconnect_timeout: timedelta = timedelta(minutes=2),
    ) -> None:
        """Describe the gateway at `host:port`, and the destination behind it.

        `reconnect_timeout` is how long a gateway may be gone before writers fail.
        """
        if kind != KINESIS:
            raise SinkOptionError("kind", f"{kind!r} is not known; known: {KINESIS}")
        self._endpoint = endpoint
        self._security = security
        self._destination = destination
        self._client_id = client_id
        self._config = config or AsyncSinkConfig()
        self._reconnect_timeout = reconnect_timeout

    def create_writer(self) -> RemoteWriter:
        """A writer with an empty buffer and a connection of its own."""
        return self.restore_writer(())

    def restore_writer(self, states: Iterable[BufferedRequestState[KinesisRequestEntry]]) -> RemoteWriter:
        """A writer that begins with what others left behind."""
        client_id = self._client_id or f"{socket.gethostname()}:{os.getpid()}"
        return RemoteWriter(
            self._endpoint,
            self._security,
            pb.Hello(kind=KINESIS, destination=self._destination, client_id=client_id),
            config=self._config,
            reconnect_timeout=self._reconnect_timeout,
            initial_states=states,
        )
