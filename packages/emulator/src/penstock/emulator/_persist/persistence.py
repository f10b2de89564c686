"""What the emulator keeps in its journal, and how it comes back.

Payloads are msgpack arrays that begin with a word:

- `account`: the last epoch, the key of the tokens, and what is remembered of deleted streams;
- `stream`: a stream's key (name and creation) and its state without records (see `_snapshot`); replaces what was there;
- `gone`: the key of a stream that was deleted;
- `records`: a stream's key, the index of a shard, and records in columns.

A request's frames are written before it is answered. Records that cannot be written are taken back; other changes stay
in memory, their request fails, and they are written with the next one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from penstock.emulator._persist.journal import frame
from penstock.emulator._persist.snapshot import decode_stream, encode_stream, skip_counters
from penstock.emulator.errors import JournalError, KinesisError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.emulator._persist.journal import Journal
    from penstock.emulator._state.kinesis import Kinesis
    from penstock.emulator._state.records import RecordSlice
    from penstock.emulator._state.shard import Shard
    from penstock.emulator._state.stream import Stream

    StreamKey: TypeAlias = tuple[str, float]

_logger = logging.getLogger(__name__)
_PUTS = {"PutRecord", "PutRecords"}
_READS = ("Get", "List", "Describe", "SubscribeToShard")
_RECORDS_PER_FRAME = 1000


@dataclass(frozen=True, slots=True)
class _Changes:
    """Frames of what is not as it was written last; and digests of everything, to find out what changed."""

    frames: list[bytes]
    account: bytes
    streams: dict[StreamKey, bytes]
    shards: int
    """How many there are, in all streams."""


class Persistence:
    """Keeps an account in a journal."""

    def __init__(self, kinesis: Kinesis, journal: Journal) -> None:
        self._kinesis = kinesis
        self._journal = journal
        self._appended: dict[Shard, int] = {}
        self._keys: dict[Shard, StreamKey] = {}
        self._kept = _Changes(frames=[], account=b"", streams={}, shards=-1)

    # Coming back

    def restore(self, now: float) -> None:
        """Bring the account to where the journal left it, and write it anew where most of the journal is of no use.

        Raises:
            JournalError: the journal cannot be read.
        """
        streams: dict[StreamKey, Stream] = {}
        for payload in self._journal.frames():
            try:
                self._apply(msgspec.msgpack.decode(payload), streams)
            except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
                # Whole, and yet not to be understood: another version wrote it.
                reason = f"the entry that ends here cannot be read: {error!r}"
                raise JournalError(path=self._journal.path, offset=self._journal.size_bytes, reason=reason) from error
        for stream in streams.values():
            self._kinesis.streams[stream.name] = stream
            for shard in stream.shards:
                skip_counters(shard, now)
                if stream.trimmed_before > stream.created:
                    # The retention may have grown since: what was lost before stays lost.
                    shard.trim(stream.trimmed_before)
        self._kinesis.settle(now)
        live = sum(
            len(encoded)
            for stream in self._kinesis.streams.values()
            for shard in stream.shards
            for encoded in shard.records.encoded
        )
        changes = self._changes()
        if live * 2 < self._journal.size_bytes:
            self._journal.rewrite(self._everything(changes))
        else:
            self._journal.append(changes.frames)
        self._kept = changes

    def _apply(self, content: list[Any], streams: dict[StreamKey, Stream]) -> None:
        match content:
            case ["account", state]:
                self._kinesis.restore_account(state["last_epoch"], state["token_key"], state.get("former", {}))
            case ["stream", [name, created], state]:
                key = (name, created)
                stream = decode_stream(self._kinesis, state)
                if key in streams:
                    for old, new in zip(streams[key].shards, stream.shards, strict=False):
                        new.take_over(old)
                streams[key] = stream
            case ["gone", [name, created]]:
                streams.pop((name, created), None)
            case ["records", [name, created], index, counters, arrivals_ms, sizes, encoded]:
                if (name, created) in streams:
                    shard = streams[name, created].shards[index]
                    for record in zip(counters, arrivals_ms, sizes, encoded, strict=True):
                        shard.restore(*record)
            case _:
                # Of a later version that kept to this format: what it is about is not known here.
                _logger.warning("left out an entry of the journal: %s", content[0])

    # Going on

    def commit(self, operation: str) -> None:
        """Write what a request did.

        Raises:
            KinesisError: InternalFailure, where it could not be written.
        """
        if operation.startswith(_READS):
            # Also with a full disk, and an earlier change that still has to be written.
            return
        changes = self._kept
        frames: list[bytes] = []
        shards = sum(len(stream.shards) for stream in self._kinesis.streams.values())
        if shards != changes.shards or operation not in _PUTS:
            changes = self._changes()
            frames += changes.frames
        appended, self._appended = self._appended, {}
        for shard, count in appended.items():
            frames += self._records(shard, len(shard.log) - count)
        if not frames:
            return
        try:
            self._journal.append(frames)
        except OSError as error:
            _logger.error("cannot write to the journal %s: %s", self._journal.path, error)
            for shard, count in appended.items():
                shard.log.drop_last(count)
            # The next write has to bring what this one could not.
            self._kept = replace(self._kept, shards=-1)
            raise KinesisError("InternalFailure", f"The journal cannot be written: {error}", status=500) from error
        self._kept = changes

    def _changes(self) -> _Changes:
        frames: list[bytes] = []
        account = msgspec.msgpack.encode(["account", self._kinesis.account_state()])
        if account != self._kept.account:
            frames.append(frame(account))
        current = {(stream.name, stream.created): stream for stream in self._kinesis.streams.values()}
        frames += [frame(msgspec.msgpack.encode(["gone", key])) for key in self._kept.streams.keys() - current.keys()]
        digests: dict[StreamKey, bytes] = {}
        for key, stream in current.items():
            payload = msgspec.msgpack.encode(["stream", key, encode_stream(stream)])
            digests[key] = sha256(payload).digest()
            if digests[key] == self._kept.streams.get(key):
                continue
            for shard in stream.shards:
                self._keys[shard] = key
                shard.on_append = self._count
            frames.append(frame(payload))
        shards = sum(len(stream.shards) for stream in current.values())
        return _Changes(frames=frames, account=account, streams=digests, shards=shards)

    def _everything(self, changes: _Changes) -> Iterator[bytes]:
        yield from changes.frames
        for stream in self._kinesis.streams.values():
            for shard in stream.shards:
                yield from self._records(shard, 0)

    def _count(self, shard: Shard) -> None:
        self._appended[shard] = self._appended.get(shard, 0) + 1

    def _records(self, shard: Shard, start: int) -> Iterator[bytes]:
        for index in range(start, len(shard.log), _RECORDS_PER_FRAME):
            records: RecordSlice = shard.log.slice(index, min(len(shard.log), index + _RECORDS_PER_FRAME))
            content = ["records", self._keys[shard], shard.index, *records.columns()]
            yield frame(msgspec.msgpack.encode(content))
