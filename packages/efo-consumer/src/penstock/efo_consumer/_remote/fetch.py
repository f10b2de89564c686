"""Reads ranges in a Spark task: blocking, and safe in processes that were forked."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import grpc

from penstock.efo_consumer._remote.arrow_stream import BatchDecoder, decode_near
from penstock.efo_consumer._remote.client import READ_RANGE, reader_error
from penstock.efo_consumer._remote.messages import ranges_to_messages
from penstock.efo_consumer._remote.resume import retrievals
from penstock.efo_consumer._remote.shared_blocks import Blocks, folder_of
from penstock.efo_consumer.errors import ReaderUnavailableError
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb
from penstock.rpc import ClientSecurity, open_channel

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
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
) -> Iterator[pa.RecordBatch]:
    """Give the records of the ranges, READ_SCHEMA, range by range, in sequence order; always the same ones.

    The channel is opened at the first call of a process and kept for its later tasks. Closing the generator ends the
    call.

    Of several addresses, joined by commas, each range is asked of the reader that follows its shard, and of the next
    one when that cannot be reached. While none can be reached, they are tried again for up to `patience_seconds`,
    for what is left. `fail_on_data_loss` and `retry_patience_seconds` are as in `OpenRequest`; None leaves them to what
    the session was opened with.

    Raises:
        DataLossError: the stream no longer holds a range.
        RangeDeadlineError: a range did not come in time.
        ReaderUnavailableError: the reader cannot be reached.
    """
    addresses = address.split(",")
    # Each reader of several counts epochs by itself: the caller's is that of all.
    own_epoch = epoch if len(addresses) == 1 else 0
    for retrieval in retrievals(ranges, addresses, addresses, patience_seconds):
        is_done = False
        while not is_done:
            retrieval.begin()
            request = pb.ReadRangeRequest(
                session_id=session_id,
                epoch=own_epoch,
                ranges=ranges_to_messages(retrieval.ranges),
                with_encryption_type=with_encryption_type,
                max_batch_bytes=max_batch_bytes,
                fail_on_data_loss=fail_on_data_loss,
                retry_patience_seconds=retry_patience_seconds,
            )
            try:
                with closing(_read(retrieval.endpoint, security, request)) as batches:
                    for batch in batches:
                        rest = retrieval.take(batch)
                        if rest.num_rows:
                            yield rest
                is_done = True
            except _BlockError as error:
                _log.warning("%s at %s: its records are read through the socket instead", error, retrieval.endpoint)
                _without_blocks.add((os.getpid(), retrieval.endpoint))
            except ReaderUnavailableError as error:
                pause = retrieval.failed(error, time.monotonic())
                if pause:
                    time.sleep(pause)


def _read(
    address: str, security: ClientSecurity | None, request: pb.ReadRangeRequest
) -> Generator[pa.RecordBatch, None, None]:
    channel = _channel(address, security or ClientSecurity())
    decoder = BatchDecoder()
    folder = None if (os.getpid(), address) in _without_blocks else folder_of(address)
    request.with_shared_blocks = folder is not None
    read_range = channel.unary_stream(
        READ_RANGE, request_serializer=pb.ReadRangeRequest.SerializeToString, response_deserializer=decode_near
    )
    call = read_range(request)
    try:
        for answer in call:
            if isinstance(answer, tuple) and folder is not None:
                answer = _take(folder, *answer)
            yield from decoder.decode(answer)
    except grpc.RpcError as error:
        raise reader_error(error, address) from error
    finally:
        # The tracing interceptor gives a generator instead of the call; dropping what it wraps cancels as well.
        end = getattr(call, "cancel", None) or getattr(call, "close", None)
        if end is not None:
            end()


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
