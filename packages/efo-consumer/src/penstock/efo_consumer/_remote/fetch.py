"""Reads ranges in a Spark task: blocking, and safe in processes that were forked."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TYPE_CHECKING

import grpc

from penstock.efo_consumer._remote.arrow_stream import BatchDecoder, decode_near
from penstock.efo_consumer._remote.messages import READ_RANGE, ranges_to_messages, reader_error
from penstock.efo_consumer._remote.resume import KINESIS, retrievals
from penstock.efo_consumer._remote.shared_blocks import Blocks, folder_of
from penstock.efo_consumer.errors import ReaderUnavailableError
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb
from penstock.rpc import ClientSecurity, open_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from penstock.efo_consumer._model.positions import ShardRange

_log = logging.getLogger(__name__)
_channels: dict[tuple[int, str, ClientSecurity], grpc.Channel] = {}
_lock = threading.Lock()
_MAX_CHANNELS = 16
_blocks: dict[int, Blocks] = {}
_without_blocks: set[tuple[int, str]] = set()
"""Readers whose blocks this process could not open."""
_HUNG_SECONDS = 10.0
"""The time in which the driver notices it, too, and informs tasks."""
_hung: dict[tuple[int, str], float] = {}
"""When readers gave no sign of life to this process."""


def read_ranges(
    address: str,
    security: ClientSecurity | None,
    session_id: str,
    ranges: Sequence[ShardRange],
    *,
    epoch: int = 0,
    with_encryption_type: bool = False,
    max_batch_bytes: int = 0,
    patience_seconds: float = 0.0,
    fail_on_data_loss: bool | None = None,
    retry_patience_seconds: float | None = None,
    progress_seconds: float | None = None,
    away: Collection[str] = (),
    from_kinesis: Callable[[Sequence[ShardRange]], AbstractContextManager[Iterator[pa.RecordBatch]]] | None = None,
    comes_back: bool = True,
    near: Mapping[str, str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Give the records of the ranges, READ_SCHEMA, range by range, in sequence order; always the same ones.

    The channel is opened at the first call of a process and kept for its later tasks. Closing the generator ends the
    call.

    Of several addresses, joined by commas, each is asked once, for the ranges of all shards that it owns, and the next
    one when that cannot be reached or gives no sign of life for `progress_seconds`. What no reader gives is read from
    Kinesis itself, if `from_kinesis` says how. While that fails too, all are tried again for up to `patience_seconds`,
    for what is left.

    Args:
        address: `host:port` or `unix:PATH` of each reader.
        security: TLS and token, the same for all.
        session_id: of the caller's session.
        ranges: what to read.
        epoch: of the caller's run; 0 for a task, whose ranges are facts and need none.
        with_encryption_type: add the columns `encryptionType` and `explicitHashKey`.
        max_batch_bytes: most bytes of one batch; 0 leaves it to the reader.
        patience_seconds: see above.
        fail_on_data_loss: as in `OpenRequest`; None leaves it to what the session was opened with.
        retry_patience_seconds: likewise.
        progress_seconds: seconds in which a reader says at least that it is at work; None waits without limit.
        away: addresses that do not answer, as the caller knows: they are asked last.
        from_kinesis: reads ranges without a reader; raises ReaderUnavailableError if that cannot be done now.
        comes_back: whether a reader that is gone may come back, as a service does. One in the query's own process does
            not: only while it gives no sign of life it is read in its place, and waited for.
        near: `unix:PATH` by address, of readers on this machine: they are called there, though shards go by addresses.

    Raises:
        DataLossError: the stream no longer holds a range.
        RangeDeadlineError: a range did not come in time.
        ReaderUnavailableError: the reader cannot be reached.
    """
    process = os.getpid()
    addresses = address.split(",")
    called = {name: name for name in addresses} | dict(near or {})

    def missing() -> set[str]:
        hung = {
            name for (owner, name), at in _hung.items() if owner == process and time.monotonic() - at < _HUNG_SECONDS
        }
        return {*away, *(name for name in addresses if called[name] in hung)}

    asked = retrievals(
        ranges,
        addresses,
        missing,
        patience_seconds,
        with_kinesis=from_kinesis is not None,
        comes_back=comes_back,
    )
    for retrieval in asked:
        is_done = False
        while not is_done:
            retrieval.begin()
            request = pb.ReadRangeRequest(
                session_id=session_id,
                epoch=epoch,
                ranges=ranges_to_messages(retrieval.ranges),
                with_encryption_type=with_encryption_type,
                max_batch_bytes=max_batch_bytes,
                fail_on_data_loss=fail_on_data_loss,
                retry_patience_seconds=retry_patience_seconds,
            )
            try:
                if retrieval.endpoint == KINESIS and from_kinesis is not None:
                    source = from_kinesis(retrieval.ranges)
                else:
                    source = closing(_read(called[retrieval.endpoint], security, request, progress_seconds))
                with source as batches:
                    for batch in batches:
                        rest = retrieval.take(batch)
                        if rest.num_rows:
                            yield rest
                is_done = True
            except _BlockError as error:
                _log.warning("%s at %s: its records are read through the socket instead", error, retrieval.endpoint)
                _without_blocks.add((os.getpid(), called[retrieval.endpoint]))
            except ReaderUnavailableError as error:
                pause = retrieval.failed(error, time.monotonic())
                if pause:
                    time.sleep(pause)


def _read(
    address: str, security: ClientSecurity | None, request: pb.ReadRangeRequest, progress_seconds: float | None
) -> Generator[pa.RecordBatch, None, None]:
    security = security or ClientSecurity()
    channel = _channel(address, security)
    decoder = BatchDecoder()
    folder = None if (os.getpid(), address) in _without_blocks else folder_of(address)
    request.with_shared_blocks = folder is not None
    read_range = channel.unary_stream(
        READ_RANGE, request_serializer=pb.ReadRangeRequest.SerializeToString, response_deserializer=decode_near
    )
    watch = None if progress_seconds is None else _Watch(progress_seconds, lambda: _drop(address, security))
    call = read_range(request)
    try:
        answers = iter(call)
        while True:
            with watch or nullcontext():
                answer = next(answers, None)
            if answer is None:
                _hung.pop((os.getpid(), address), None)
                return
            if isinstance(answer, tuple) and folder is not None:
                answer = _take(folder, *answer)
            yield from decoder.decode(answer)
    except grpc.RpcError as error:
        if watch is not None and watch.is_over:
            _hung[os.getpid(), address] = time.monotonic()
            reason = f"DEADLINE_EXCEEDED: no sign of life for {progress_seconds:g} s"
            raise ReaderUnavailableError(endpoint=address, reason=reason) from error
        raise reader_error(error, address) from error
    finally:
        if watch is not None:
            watch.end()
        # The tracing interceptor gives a generator instead of the call; dropping what it wraps cancels as well.
        end = getattr(call, "cancel", None) or getattr(call, "close", None)
        if end is not None:
            end()


class _Watch:
    """Ends a wait for a reader that gives no sign of life: a context manager around each wait.

    Args:
        seconds: the longest wait.
        end_wait: makes the call fail, from another thread.
    """

    def __init__(self, seconds: float, end_wait: Callable[[], None]) -> None:
        self.is_over = False
        self._seconds = seconds
        self._end_wait = end_wait
        self._since: float | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="watch a shard reader", daemon=True).start()

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._since = None

    def end(self) -> None:
        """Let the thread end."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds / 8):
            since = self._since
            if since is not None and time.monotonic() - since > self._seconds:
                self.is_over = True
                self._end_wait()
                return


def _drop(address: str, security: ClientSecurity) -> None:
    """Close the connection, which ends its calls: what waits on it waits for a reader that does not answer."""
    with _lock:
        channel = _channels.pop((os.getpid(), address, security), None)
    if channel is not None:
        channel.close()


class _BlockError(Exception):
    """A block is there for the reader, and not for us."""


def _take(folder: Path, name: str, nbytes: int) -> pa.Buffer:
    with _lock:
        blocks = _blocks.setdefault(os.getpid(), Blocks())
    try:
        return blocks.take(folder, name, nbytes)
    except OSError as error:
        raise _BlockError(f"cannot open a block ({error})") from error


def _channel(address: str, security: ClientSecurity) -> grpc.Channel:
    # gRPC's threads do not survive a fork: a child must not use, nor close, what its parent opened.
    key = (os.getpid(), address, security)
    with _lock:
        if key not in _channels:
            own = [known for known in _channels if known[0] == key[0]]
            if len(own) >= _MAX_CHANNELS:
                # Workers outlive queries, each of which has an address of its own.
                _channels.pop(own[0]).close()
            _channels[key] = open_channel(address, security)
        return _channels[key]
