"""A session of any shard reader for callers without an event loop."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from penstock.efo_consumer._model.shards import StreamIdentity
from penstock.efo_consumer._publish.publisher import RecordPublisherType
from penstock.efo_consumer._reader.api import OpenRequest, StreamConsumer
from penstock.efo_consumer._remote.fleet import FleetShardReader
from penstock.efo_consumer._remote.messages import CALL_SECONDS
from penstock.efo_consumer._remote.resume import PATIENCE_SECONDS
from penstock.efo_consumer.errors import EfoConsumerConfigError, EfoConsumerError, SessionNotFoundError
from penstock.rpc import ClientSecurity, LoopThread, LoopThreadClosedError, LoopThreadForkedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.aws import AwsLocation
    from penstock.efo_consumer._model.positions import StreamPositions
    from penstock.efo_consumer._publish.config import Deaggregation
    from penstock.efo_consumer._reader.api import PositionsOptions, PositionsSnapshot, ShardReader, ShardStats
    from penstock.efo_consumer._reader.config import SessionSettings


class BlockingSession:
    """One session of a shard reader for callers without an event loop. Safe to share between threads.

    Args:
        thread: on which the reader lives.
        reader: the reader, for one session at a time.
        on_close: called by `close`, after the session was ended.
        patience_seconds: how long to wait for a remote reader that does not answer.
    """

    def __init__(
        self,
        thread: LoopThread,
        reader: ShardReader,
        *,
        on_close: Callable[[], None] | None = None,
        patience_seconds: float = 0.0,
    ) -> None:
        self._thread = thread
        self._reader = reader
        self._on_close = on_close
        self._is_open = False
        self._robbed: frozenset[str] = frozenset()
        self._request: OpenRequest | None = None
        self.patience_seconds = patience_seconds
        """How long to wait for a remote reader that does not answer."""
        self.session_id = ""
        """Id of the session that was opened last; empty before."""
        self.epoch = 0
        """Epoch of the session that was opened last; 0 before."""

    def open(
        self,
        session_id: str,
        positions: StreamPositions,
        record_publisher: RecordPublisherType = RecordPublisherType.EFO,
        consumers: Sequence[StreamConsumer | tuple[str, str, int]] = (),
        *,
        fail_on_data_loss: bool | None = None,
        retry_patience_seconds: float | None = None,
        settings: SessionSettings | None = None,
        caller: AwsLocation | None = None,
        after_epoch: int = 0,
    ) -> int:
        """See `ShardReader.open`; the other calls are for the session that was opened last."""
        request = OpenRequest(
            session_id=session_id,
            positions=positions,
            record_publisher=RecordPublisherType(record_publisher),
            consumers=tuple(
                StreamConsumer(*consumer) if isinstance(consumer, tuple) else consumer for consumer in consumers
            ),
            fail_on_data_loss=fail_on_data_loss,
            retry_patience_seconds=retry_patience_seconds,
            settings=settings,
            caller=caller,
            after_epoch=after_epoch,
            owner=f"host {socket.gethostname()}, process {os.getpid()}",
        )
        self.epoch = self._thread.call(self._reader.open(request))
        self._is_open, self.session_id = True, session_id
        self._request = replace(request, epoch=self.epoch)
        return self.epoch

    def reopen(self, positions: StreamPositions, consumers: Sequence[StreamConsumer]) -> None:
        """Continue at the positions with other stream consumers, as the same run, and with the other options of `open`.

        Raises:
            SessionNotFoundError: it was not opened, or is closed.
            StaleEpochError: a newer run has the session.
            FencedConsumerError: the reader has seen a newer lease.
        """
        reader = self._open_reader()
        assert self._request is not None
        request = replace(self._request, positions=positions, consumers=tuple(consumers))
        self.epoch = self._thread.call(reader.open(request))
        self._request = replace(request, epoch=self.epoch)

    @property
    def endpoint(self) -> str | None:
        """Where the remote reader is now, several joined by commas; None for a reader in this process."""
        remote = self._reader
        return remote.endpoint if isinstance(remote, FleetShardReader) else None

    @property
    def away(self) -> list[str]:
        """Endpoints of the remote readers that do not answer now, or serve no part of the session."""
        remote = self._reader
        return remote.away if isinstance(remote, FleetShardReader) else []

    @property
    def deaggregates(self) -> Deaggregation | None:
        """See `ShardReader.deaggregates`."""
        return self._open_reader().deaggregates

    def positions(self, start: StreamPositions, **options: Unpack[PositionsOptions]) -> PositionsSnapshot:
        """See `ShardReader.positions`."""
        return self._thread.call(self._open_reader().positions(self.session_id, self.epoch, start, **options))

    def is_robbed(self, consumer_arn: str) -> bool:
        """Whether another reader takes the session's subscriptions by a stream consumer; as it was, once it is closed.

        Unknown if the reader no longer knows the session.
        """
        if self._is_open:
            self._robbed = self._find_robbed()
        return consumer_arn in self._robbed

    def _find_robbed(self) -> frozenset[str]:
        """The stream consumers whose subscriptions others take."""
        assert self._request is not None
        streams = {one.stream_name for one in self.stats() if one.taken_over}
        found = (one for one in self._request.consumers if StreamIdentity.of(one.stream_name).name in streams)
        return frozenset(one.consumer_arn for one in found)

    def commit(self, positions: StreamPositions) -> None:
        """See `ShardReader.commit`."""
        self._thread.call(self._open_reader().commit(self.session_id, self.epoch, positions))

    def stats(self) -> list[ShardStats]:
        """See `ShardReader.stats`."""
        return self._thread.call(self._open_reader().stats(self.session_id))

    def stats_by_reader(self) -> dict[str, list[ShardStats]]:
        """The same by address of the reader that has a shard; empty for a reader in this process."""
        reader = self._open_reader()
        if isinstance(reader, FleetShardReader):
            return self._thread.call(reader.stats_by_reader(self.session_id))
        return {self.endpoint or "": self.stats()}

    def close(self) -> None:
        """End the session; a reader that cannot be reached is left alone. Can be called again.

        In a forked child it does nothing: the session is the parent's.
        """
        # A session that its own reader no longer knows is not waited for.
        with suppress(EfoConsumerError, TimeoutError, LoopThreadClosedError, LoopThreadForkedError):
            if self._is_open:
                self._robbed = self._find_robbed()
        was_open, self._is_open = self._is_open, False
        with suppress(EfoConsumerError, TimeoutError, LoopThreadClosedError, LoopThreadForkedError):
            if was_open:
                self._thread.call(self._reader.close_session(self.session_id, self.epoch), CALL_SECONDS)
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def _open_reader(self) -> ShardReader:
        if not self._is_open:
            raise SessionNotFoundError(session_id=self.session_id)
        return self._reader


def connect_reader(
    endpoint: str | Sequence[str] | Callable[[], Sequence[str]],
    security: ClientSecurity | None = None,
    *,
    patience_seconds: float = PATIENCE_SECONDS,
) -> BlockingSession:
    """Connect to shard reader services: the same calls as in-process. Close it.

    Of several endpoints each follows the shards that rendezvous hashing gives it, and the others take over the shards
    of one that does not answer; see `FleetShardReader`. While none answers, calls wait for up to `patience_seconds`
    (infinity: without end).

    Args:
        endpoint: `host:port`, several of them, or a function that gives the current ones.
        security: TLS and token, the same for all.
        patience_seconds: see above.

    Raises:
        EfoConsumerConfigError: no endpoint is given.
        RpcOptionError: a TLS file cannot be read, or a token would cross the network in plain text (at `open`).
    """
    if not callable(endpoint):
        endpoint = [endpoint] if isinstance(endpoint, str) else list(endpoint)
        if not endpoint or not all(endpoint):
            raise EfoConsumerConfigError(option="readerEndpoint", reason="needs host:port, or several of them")
    reader = FleetShardReader(endpoint, security, patience_seconds=patience_seconds)
    thread = LoopThread("penstock reader client")

    def on_close() -> None:
        with suppress(LoopThreadForkedError):
            thread.call(reader.aclose(), CALL_SECONDS)
        thread.close()

    return BlockingSession(thread, reader, on_close=on_close, patience_seconds=patience_seconds)
