"""What tests need around the emulator: a thread or process for callers without a loop, a clock to move, aggregates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from hashlib import md5
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import botocore.loaders
import botocore.session

from penstock.emulator._clock import AdjustableClock, ManualClock, OtherClock
from penstock.emulator._config import EmulatorConfig
from penstock.emulator._server import EmulatorServer, server_context
from penstock.emulator._state.sequence import hash_key
from penstock.emulator.errors import EmulatorStartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.emulator._clock import Clock
    from penstock.emulator._config import Behaviour
    from penstock.emulator._dynamodb_streams import DynamoDbStreams
    from penstock.emulator._faults import FaultPlan
    from penstock.emulator._state.kinesis import Kinesis

_MAGIC = b"\xf3\x89\x9a\xc2"
_KEY, _HASH_KEY, _RECORD = 1, 2, 3
_INDEX_OF_KEY, _INDEX_OF_HASH_KEY, _DATA = 1, 2, 3
_MISSING = 1_000_000
"""An index that no table of a test reaches."""


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A record within an aggregate. Kinesis looks at none of it, so a test may write what no producer should.

    Attributes:
        data: the payload.
        partition_key: a text; bytes that need not be UTF-8; None to refer to an entry that the table does not have.
        explicit_hash_key: decimal digits, or anything else; None for a record without one.
    """

    data: bytes
    partition_key: str | bytes | None
    explicit_hash_key: str | bytes | None = None

    @property
    def hash_key(self) -> int:
        """Where Kinesis would put the record: its explicit hash key, or the MD5 of its partition key.

        Raises:
            ValueError: the record has no partition key that is a text, or its explicit hash key is not a number.
        """
        if self.explicit_hash_key is not None:
            return int(self.explicit_hash_key)
        if not isinstance(self.partition_key, str):
            raise ValueError(f"no hash key follows from the partition key {self.partition_key!r}")
        return hash_key(self.partition_key)


def aggregate(
    records: Iterable[UserRecord],
    *,
    unused_keys: Iterable[str | bytes] = (),
    unused_hash_keys: Iterable[str | bytes] = (),
) -> bytes:
    """Pack user records into the data of one Kinesis record, whatever shards their keys belong to.

    Args:
        records: in the order in which a reader delivers them.
        unused_keys: further entries of the table of partition keys, which no record refers to.
        unused_hash_keys: further entries of the table of explicit hash keys.
    """
    keys: dict[bytes, int] = {}
    hash_keys: dict[bytes, int] = {}
    packed = []
    for record in records:
        key = _MISSING if record.partition_key is None else _entry(keys, record.partition_key)
        fields = _number(_INDEX_OF_KEY, key)
        if record.explicit_hash_key is not None:
            fields += _number(_INDEX_OF_HASH_KEY, _entry(hash_keys, record.explicit_hash_key))
        packed.append(fields + _bytes(_DATA, record.data))
    for table, unused in ((keys, unused_keys), (hash_keys, unused_hash_keys)):
        for text in unused:
            _entry(table, text)
    return _framed(
        b"".join(
            _bytes(number, value)
            for number, values in ((_KEY, keys), (_HASH_KEY, hash_keys), (_RECORD, packed))
            for value in values
        )
    )


def routed_aggregates(records: Iterable[UserRecord], shards: Iterable[Mapping[str, Any]]) -> dict[str, bytes]:
    """Pack user records as the Kinesis Producer Library does: an aggregate holds records of one open shard.

    Args:
        records: with valid keys.
        shards: as `list_shards` of boto3 returns them under `Shards`; closed ones take no records.

    Returns:
        The aggregates by shard id. Put each with the `StartingHashKey` of its shard as `ExplicitHashKey`.
    """
    ranges = {
        shard["ShardId"]: [int(shard["HashKeyRange"][end]) for end in ("StartingHashKey", "EndingHashKey")]
        for shard in shards
        if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    }
    of_shards: dict[str, list[UserRecord]] = {}
    for record in records:
        shard_id = next(one for one, (first, last) in ranges.items() if first <= record.hash_key <= last)
        of_shards.setdefault(shard_id, []).append(record)
    return {shard_id: aggregate(found) for shard_id, found in of_shards.items()}


def partition_keys_in(first: int, last: int, number: int) -> list[str]:
    """Return different partition keys whose hash keys lie between two, both included.

    Args:
        first: the lowest hash key, 0 to 2^128 - 1.
        last: the highest one.
        number: how many keys. A range of a thousandth of all hash keys takes a thousand tries for each.
    """
    return list(islice((key for key in (f"key-{n}" for n in count()) if first <= hash_key(key) <= last), number))


def malformed_aggregates() -> dict[str, bytes]:
    """Return data that begins like an aggregate but is not one, by what is wrong with it."""
    sound = aggregate([UserRecord(b"data", "key")])
    body = sound[len(_MAGIC) : -16]
    return {
        "checksum": sound[:-1] + bytes([sound[-1] ^ 1]),
        "cut off": sound[:-1],
        "something behind it": sound + b"more",
        "magic number alone": _MAGIC,
        "body cut off": _framed(body[:-1]),
        "no user record": _framed(_bytes(_KEY, b"key")),
        "user record without data": _framed(_bytes(_KEY, b"key") + _bytes(_RECORD, _number(_INDEX_OF_KEY, 0))),
        "user record without key": _framed(_bytes(_KEY, b"key") + _bytes(_RECORD, _bytes(_DATA, b"data"))),
    }


def _entry(table: dict[bytes, int], text: str | bytes) -> int:
    """The index of an entry, which is added if it is not there."""
    entry = text.encode() if isinstance(text, str) else text
    return table.setdefault(entry, len(table))


def _framed(body: bytes) -> bytes:
    return _MAGIC + body + md5(body, usedforsecurity=False).digest()


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


__all__ = [
    "AdjustableClock",
    "EmulatorProcess",
    "ManualClock",
    "OtherClock",
    "RunningEmulator",
    "UserRecord",
    "aggregate",
    "malformed_aggregates",
    "partition_keys_in",
    "routed_aggregates",
    "running_emulator",
    "server_context",
    "start_emulator_process",
]

_T = TypeVar("_T")


@cache
def _loader(data_path: str | None) -> Any:
    # One for all clients: each would read some MB of models and endpoints, which takes most of its making.
    return botocore.loaders.create_loader(data_path)


def kinesis_client(endpoint_url: str, *, region: str = "us-east-1", service: str = "kinesis", **options: Any) -> Any:
    """Make a boto3 client with dummy credentials for an endpoint; `options` go to ``create_client``."""
    session = botocore.session.Session()
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session.create_client(
        service,
        endpoint_url=endpoint_url,
        region_name=region,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        **options,
    )


class RunningEmulator:
    """An emulator on a thread of its own."""

    def __init__(self, server: EmulatorServer, loop: asyncio.AbstractEventLoop) -> None:
        self.endpoint_url: str = server.endpoint_url
        self.tls_endpoint_url: str = server.tls_endpoint_url if server.config.tls else ""
        self.endpoints: dict[str, str] = server.endpoints
        self.ca_file: Path = server.ca_file if server.config.tls else Path()
        self.firehose_folder: Path = server.firehose_folder
        self.kinesis: Kinesis = server.kinesis
        self.dynamodb_streams: DynamoDbStreams = server.dynamodb_streams
        self.faults: FaultPlan = server.faults
        self.config: EmulatorConfig = server.config
        self.clock: Clock = server.clock
        self._loop = loop

    @property
    def behaviour(self) -> Behaviour:
        """What is done where Kinesis leaves things open; may be set at any time, from any thread but the emulator's."""
        return self.kinesis.behaviour

    @behaviour.setter
    def behaviour(self, behaviour: Behaviour) -> None:
        def change() -> None:
            self.kinesis.behaviour = behaviour

        self.call(change)

    def client(self, service: str = "kinesis", **options: Any) -> Any:
        """Make a boto3 client with dummy credentials (plain text, HTTP/1.1) for one of the `endpoints`."""
        return kinesis_client(self.endpoints[service], region=self.config.region, service=service, **options)

    def call(self, function: Callable[[], _T]) -> _T:
        """Run `function` on the emulator's loop and return its result: the safe way to touch `kinesis`."""
        result: Future[_T] = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result()


@contextlib.contextmanager
def running_emulator(*, clock: Clock | None = None, **config: Any) -> Iterator[RunningEmulator]:
    """Run an emulator on a thread of its own, for callers without a loop: boto3, Spark.

    Args:
        clock: a `ManualClock`, to move time, or an `OtherClock`, for a service whose clock is not this host's.
        config: the fields of `EmulatorConfig`.
    """
    options = EmulatorConfig(**config)
    ready: Future[tuple[RunningEmulator, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with EmulatorServer(options, clock=clock) as server:
            ready.set_result((RunningEmulator(server, asyncio.get_running_loop()), stop))
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run, name="emulator", daemon=True)
    thread.start()
    running, stop = ready.result()
    try:
        yield running
    finally:
        running.call(stop.set)
        thread.join()


class EmulatorProcess:
    """An emulator in a child process."""

    def __init__(self, ready: dict[str, Any], process: subprocess.Popen[str]) -> None:
        self.endpoint_url: str = ready["endpoint_url"]
        self.tls_endpoint_url: str = ready["tls_endpoint_url"] or ""
        self.endpoints: dict[str, str] = ready["endpoints"]
        self.ca_file = Path(ready["ca_file"] or "")
        self.pid: int = ready["pid"]
        self.process = process

    def client(self, service: str = "kinesis", **options: Any) -> Any:
        """Make a boto3 client with dummy credentials (plain text, HTTP/1.1) for one of the `endpoints`."""
        return kinesis_client(self.endpoints[service], service=service, **options)


@contextlib.contextmanager
def start_emulator_process(*arguments: str, stop_timeout: float = 10.0) -> Iterator[EmulatorProcess]:
    """Run ``python -m penstock.emulator`` as a child; it ends with the context, and with this process at the latest.

    Args:
        arguments: command-line options, such as ``"--no-enforce-limits"``.
        stop_timeout: seconds between SIGTERM and SIGKILL.

    Raises:
        EmulatorStartError: the process ended before it was ready.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.emulator", "--exit-with-parent", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise EmulatorStartError(exit_code=process.wait(), output="no ready line on standard output")
        yield EmulatorProcess(json.loads(line), process)
    finally:
        process.terminate()
        try:
            process.wait(stop_timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
