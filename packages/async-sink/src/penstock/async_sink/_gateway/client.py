"""The gateway as a sink: the same calls, the other home."""

import os
import socket
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.entries import BufferedRequestState
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._core.writer import AsyncSinkBase
from penstock.async_sink._destinations.writer import DestinationWriter
from penstock.async_sink._gateway.connection import GatewayDestination
from penstock.async_sink._gateway.kinds import KINDS, KINESIS
from penstock.async_sink.errors import SinkOptionError
from penstock.aws import AwsLocation
from penstock.proto.aws.v1.aws_pb2 import AwsLocation as AwsLocationMessage
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb
from penstock.rpc import ClientSecurity


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
        config: AsyncSinkConfig | None = None,
        reconnect_timeout: timedelta = timedelta(minutes=2),
        terminal: Callable[[], TerminalRecordHandler] | None = None,
        caller: AwsLocation | None = None,
    ) -> None:
        """Describe the gateway at `host:port`, and the destination behind it.

        `kind` is `kinesis`, `firehose`, `dynamodb` or `sqs`; `destination` the name or ARN of the stream, the name of
        the delivery stream or table, the URL of the queue. `weight` is the share of turns against other clients';
        writers with one `client_id` share theirs. `reconnect_timeout` is how long a gateway may be gone before writers
        fail. `terminal` makes the handler of each writer for records that the gateway could not write for good; without
        it they end the writer. `caller` says where the destination is: a gateway that would write to another region,
        account or endpoint refuses it.
        """
        if kind not in KINDS:
            raise SinkOptionError("kind", f"{kind!r} is not known; known: {', '.join(KINDS)}")
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
        """A writer that begins with what others left behind."""
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
