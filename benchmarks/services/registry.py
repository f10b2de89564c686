"""The cases of `hatch run bench registry`: ten thousand leases on SQLite, on one core.

The peer is a bare transaction on the same disk: one row updated and synced, by `sqlite3` alone.
"""

import asyncio
import gc
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc

from benchmarks._harness import Case, interleave
from penstock.registration import (
    SERVICE_NAME,
    AcquireRequest,
    ConsumerRegistryServicer,
    Lease,
    LeaseSettings,
    LocalConsumerRegistry,
    RegistrationStrategy,
    RemoteConsumerRegistry,
    SqliteLeaseStore,
    StreamConsumerRegistrar,
    default_store_path,
)
from penstock.rpc import GrpcServer, ServerSettings

_LEASES = 10_000
_STREAMS = 500
_HEARTBEAT_SECONDS = 10.0
_TRANSACTIONS = 500
_ACQUIRES = 1_000
_HELD_SECONDS = 5.0
_SETTINGS = LeaseSettings(default_time_to_live=timedelta(seconds=30), grace_period=timedelta(minutes=1))


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this process on one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


class _Transactions:
    """What a heartbeat costs without batches: a row, a transaction."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            "CREATE TABLE leases (id INTEGER PRIMARY KEY, job TEXT, token INTEGER, renewed_at REAL)"
        )
        self._connection.execute("BEGIN")
        rows = ((number, f"job-{number}") for number in range(_LEASES))
        self._connection.executemany("INSERT INTO leases VALUES (?, ?, 1, 0)", rows)
        self._connection.execute("COMMIT")

    def rate(self) -> float:
        """Transactions a second."""
        renew = "UPDATE leases SET renewed_at = ? WHERE id = ? AND job = ? AND token = 1"
        start = time.perf_counter()
        for number in range(_TRANSACTIONS):
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(renew, (time.time(), number, f"job-{number}"))
            self._connection.execute("COMMIT")
        return _TRANSACTIONS / (time.perf_counter() - start)

    def close(self) -> None:
        self._connection.close()


class _Kinesis:
    """A client: every consumer is there already."""

    async def close(self) -> None:
        pass

    async def call(self, _operation: str, /, **members: Any) -> dict[str, Any]:
        name = members["ConsumerName"]
        arn = f"{members['StreamARN']}/consumer/{name}:1700000000"
        return {"ConsumerDescription": {"ConsumerName": name, "ConsumerARN": arn, "ConsumerStatus": "ACTIVE"}}


class _Registry:
    """A registry on SQLite with ten thousand leases, behind gRPC on request."""

    def __init__(self, path: Path) -> None:
        registrar = StreamConsumerRegistrar(_Kinesis())
        self.registry = LocalConsumerRegistry(registrar, SqliteLeaseStore(path), settings=_SETTINGS)
        self.leases: list[Lease] = []
        self._acquired = 0

    async def acquire(self, count: int, *, given: bool) -> list[Lease]:
        """New leases, asked for together, by consumer ARNs that are `given` or looked up."""
        first, self._acquired = self._acquired, self._acquired + count
        requests = (_request(number, given=given) for number in range(first, first + count))
        return await asyncio.gather(*map(self.registry.acquire, requests))

    async def acquire_rate(self) -> float:
        """Leases a second, asked for together, without a call to Kinesis."""
        start = time.perf_counter()
        await self.acquire(_ACQUIRES, given=True)
        return _ACQUIRES / (time.perf_counter() - start)

    async def renew_rate(self) -> float:
        """Heartbeats a second, as a service has them when they arrive together; each is answered."""
        start = time.perf_counter()
        outcomes = await asyncio.gather(*map(self.registry.heartbeat, self.leases))
        seconds = time.perf_counter() - start
        if not all(outcome.held for outcome in outcomes):
            raise RuntimeError("a lease was lost")
        return len(outcomes) / seconds

    async def share_of_core(self) -> float:
        """Return the share of a core while each lease is renewed every ten seconds over gRPC, with all processes."""
        servicer = ConsumerRegistryServicer(self.registry)
        async with (
            GrpcServer(ServerSettings(), register=[servicer.add_to], service_names=[SERVICE_NAME]) as server,
            RemoteConsumerRegistry(server.address) as remote,
        ):

            async def beat(number: int) -> None:
                if not (await remote.heartbeat(self.leases[number])).held:
                    raise RuntimeError("a lease was lost")

            share = await _share_of_core(beat)
            servicer.drain()
        return share


async def _share_of_calls() -> float:
    """Return the share of a core for as many gRPC calls that do nothing, for client and server."""

    async def answer(request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return request

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", {"Call": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/bare/Call", None, None)

        async def beat(_number: int) -> None:
            await call(b"x" * 100)

        share = await _share_of_core(beat)
    await server.stop(None)
    return share


async def _share_of_core(beat: Callable[[int], Coroutine[Any, Any, None]]) -> float:
    """Return the share of a core while each lease has a heartbeat every ten seconds."""
    await beat(0)
    start, busy = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as beats:
        for number in range(int(_LEASES * _HELD_SECONDS / _HEARTBEAT_SECONDS)):
            ahead = start + number * _HEARTBEAT_SECONDS / _LEASES - time.perf_counter()
            if ahead > 0.005:
                await asyncio.sleep(ahead)
            beats.create_task(beat(number))
    return (time.process_time() - busy) / (time.perf_counter() - start)


def _request(number: int, *, given: bool) -> AcquireRequest:
    stream, consumer = f"arn:aws:kinesis:eu-west-1:123456789012:stream/stream-{number % _STREAMS}", f"consumer-{number}"
    return AcquireRequest(
        stream_name=stream.partition("/")[2],
        stream_arn=stream,
        job_id=f"job-{number}",
        consumer_name=consumer,
        strategy=RegistrationStrategy.NONE if given else RegistrationStrategy.EAGER,
        consumer_arn=f"{stream}/consumer/{consumer}:1700000000" if given else None,
    )


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _grow(runner: asyncio.Runner, registry: _Registry) -> float:
    """Acquire the leases. Returns the bytes that this process grew by for each: as the job's and the registry's."""
    runner.run(registry.acquire(_STREAMS, given=False))
    before = _resident_bytes()
    for _ in range(_LEASES // _STREAMS):
        registry.leases += runner.run(registry.acquire(_STREAMS, given=False))
    return (_resident_bytes() - before) / _LEASES


def run(rounds: int) -> Iterator[Case]:
    """Measure rates beside one transaction, and then the cost of ten thousand leases."""
    with ExitStack() as stack:
        stack.enter_context(_one_core())
        # Where registries keep their files: temporary folders may be in memory, where a transaction costs nothing.
        disk = default_store_path().parent
        disk.mkdir(parents=True, exist_ok=True)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=disk)))
        bare = _Transactions(folder / "bare.db")
        stack.callback(bare.close)
        runner = stack.enter_context(asyncio.Runner())
        ours = _Registry(folder / "registry.db")
        stack.callback(lambda: runner.run(ours.registry.close()))
        bytes_per_lease = _grow(runner, ours)
        peer = "sqlite-transaction"

        def renew() -> float:
            return runner.run(ours.renew_rate())

        def acquire() -> float:
            return runner.run(ours.acquire_rate())

        yield interleave("renew-over-transaction", renew, bare.rate, peer_name=peer, unit="/s", rounds=rounds)
        yield interleave("acquire-over-transaction", acquire, bare.rate, peer_name=peer, unit="/s", rounds=rounds)

        def share() -> float:
            return runner.run(ours.share_of_core())

        def share_of_calls() -> float:
            return runner.run(_share_of_calls())

        name = "core-share-over-bare-calls"
        shares = interleave(name, share, share_of_calls, peer_name="bare-calls", unit="cores", rounds=rounds)
        yield Case(
            name="core-share-of-10000-leases",
            peer_name="one-core",
            unit="cores",
            ours=shares.ours,
            peers=[1.0] * rounds,
        )
        yield shares
        yield Case(
            name="bytes-of-memory-per-lease", peer_name="one-byte", unit="B", ours=[bytes_per_lease], peers=[1.0]
        )
