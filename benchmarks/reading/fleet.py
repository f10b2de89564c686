"""The cases of `hatch run bench fleet`: four reader services share 2,000 shards; one is killed, and one comes.

The shards are idle but for a record to each of them at every step, which says when each flows again; each record has to
come once. Emulator and services are processes of their own, the subscriptions real ones, over HTTP/2 with TLS.
`PENSTOCK_BENCH_FLEET_SHARDS` sets another number of shards; with 8,000 two cores miss the aim, emulator included.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks._harness import Case
from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    FleetShardReader,
    OpenRequest,
    RecordPublisherType,
    RemoteShardReader,
    StreamConsumer,
    StreamPositions,
    resolve_initial_positions,
)
from penstock.efo_consumer.errors import SessionNotFoundError
from penstock.emulator.testing import EmulatorProcess, start_emulator_process
from penstock.rpc import ClientSecurity
from penstock.rpc.testing import ServiceProcess, service_process

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator

_READERS = 4
_STREAM, _SESSION = "fleet", "bench"
_SECURITY = ClientSecurity(token="a-token-of-this-bench-with-32-characters")
_AIM_SECONDS = 15.0
_AIM_SHARE = 1 / _READERS
_PATIENCE_SECONDS = 120.0
_PUT_RECORDS = 500


@dataclass(frozen=True)
class _Found:
    """What a round gave. Seconds are from the moment of the change."""

    begin_seconds: float
    """From the opening of the session until a record of each shard came."""
    killed_seconds: float
    """Until a record of each shard of the killed reader came."""
    others_seconds: float
    """Until a record of each other shard came."""
    killed_share: float
    """The share of all shards that the killed reader had."""
    joined_seconds: float
    """Until a record of each shard came, after the fourth reader is there again."""
    joined_share: float
    """The share of all shards that moved to it or between other readers."""
    begin_processor: dict[str, float]
    """Seconds of a processor that went by from the opening to the first records, by who took them."""
    killed_processor: dict[str, float]
    """Likewise while the killed reader's shards came to flow again."""


class _Flow:
    """Follows a session, and counts how often each record came."""

    def __init__(self, fleet: FleetShardReader) -> None:
        self._fleet = fleet
        self._came = asyncio.Event()
        self.counts: Counter[bytes] = Counter()

    async def follow(self, epoch: int, start: StreamPositions) -> None:
        """Until it is cancelled."""
        async with aclosing(self._fleet.follow(_SESSION, epoch, start)) as batches:
            async for batch in batches:
                if batch.records is not None:
                    self.counts.update(batch.records.column("data").to_pylist())
                if batch.reached is not None:
                    await self._fleet.commit(_SESSION, epoch, batch.reached.positions)
                self._came.set()

    async def until(self, records: Iterable[bytes]) -> float:
        """Wait for all of these; the time when they are there, by `perf_counter`."""
        missing = set(records)
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while missing := {one for one in missing if one not in self.counts}:
                self._came.clear()
                await self._came.wait()
        return time.perf_counter()


class _Producer:
    """Puts a record to each of some shards, and remembers it."""

    def __init__(self, emulator: EmulatorProcess, shards: int) -> None:
        self._client = emulator.client()
        self._turns = itertools.count()
        self._shards = shards
        self.put: list[bytes] = []

    async def put_to(self, shards: Iterable[int]) -> dict[int, bytes]:
        """The record of each of these."""
        turn = next(self._turns)
        made = {shard: f"{turn}-{shard}".encode() for shard in shards}
        entries = [
            {"Data": data, "PartitionKey": "k", "ExplicitHashKey": str((2 * shard + 1) * 2**128 // (2 * self._shards))}
            for shard, data in made.items()
        ]
        for first in range(0, len(entries), _PUT_RECORDS):
            part = entries[first : first + _PUT_RECORDS]
            answer = await asyncio.to_thread(self._client.put_records, StreamName=_STREAM, Records=part)
            if answer["FailedRecordCount"]:
                raise RuntimeError("the emulator refused records")
        self.put += made.values()
        return made


def _services(stack: ExitStack, emulator: EmulatorProcess) -> Iterator[ServiceProcess]:
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "PENSTOCK_READER_TOKEN": _SECURITY.token or "",
        "PENSTOCK_READER_REGION": "us-east-1",
        "PENSTOCK_READER_CA_BUNDLE": str(emulator.ca_file),
    }
    arguments = ["serve", "--endpoint-url", emulator.tls_endpoint_url]
    while True:
        yield stack.enter_context(service_process("penstock.services.shard_reader", arguments, environment))


async def _followed(services: Iterable[ServiceProcess]) -> dict[str, set[int]]:
    """The shards that each of the services follows, or has followed, as it says itself."""
    found: dict[str, set[int]] = {}
    for service in services:
        reader = RemoteShardReader(service.address, _SECURITY)
        with suppress(SessionNotFoundError):  # one that has come a moment ago
            stats = await reader.stats(_SESSION)
            found[service.address] = {int(one.shard_id.removeprefix("shardId-")) for one in stats}
        await reader.aclose()
    return found


class _Processor:
    """Seconds of a processor of some processes, by who they are, since it was made."""

    def __init__(self, emulator: EmulatorProcess, readers: Iterable[ServiceProcess]) -> None:
        self._processes = {"emulator": [psutil.Process(emulator.pid)], "this process": [psutil.Process()]}
        self._processes["readers"] = [psutil.Process(one.process.pid) for one in readers]
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        times = {who: [one.cpu_times() for one in processes] for who, processes in self._processes.items()}
        return {who: sum(one.user + one.system for one in some) for who, some in times.items()}

    def taken(self) -> dict[str, float]:
        """By whom, since then."""
        return {who: seconds - self._before[who] for who, seconds in self._now().items()}


def _gained(before: dict[str, set[int]], after: dict[str, set[int]]) -> int:
    return sum(len(shards - before.get(address, set())) for address, shards in after.items())


@asynccontextmanager
async def _followed_by(fleet: FleetShardReader, request: OpenRequest) -> AsyncGenerator[_Flow, None]:
    flow = _Flow(fleet)
    epoch = await fleet.open(request)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(flow.follow(epoch, request.positions), name="follow")
        yield flow
        following.cancel()
    await fleet.close_session(_SESSION, epoch)
    await fleet.aclose()


async def _measure(emulator: EmulatorProcess, request: OpenRequest, shards: int, stack: ExitStack) -> _Found:
    starting = _services(stack, emulator)
    services = [next(starting) for _ in range(_READERS)]
    endpoints = [service.address for service in services]
    producer, everything = _Producer(emulator, shards), range(shards)
    began, beginning = time.perf_counter(), _Processor(emulator, services)
    async with _followed_by(FleetShardReader(lambda: list(endpoints), _SECURITY), request) as flow:
        put = await producer.put_to(everything)
        begun = await flow.until(put.values())
        begin_processor = beginning.taken()
        victim, *others = services
        owned = (await _followed([victim]))[victim.address]
        victim.process.kill()
        killed, moving = time.perf_counter(), _Processor(emulator, others)
        put = await producer.put_to([*owned, *(set(everything) - owned)])
        flowing = asyncio.create_task(flow.until(put[shard] for shard in owned), name="killed reader's shards")
        others_flow = await flow.until(put[shard] for shard in everything if shard not in owned)
        moved = await flowing
        killed_processor = moving.taken()
        before = await _followed(others)
        fourth = await asyncio.to_thread(next, starting)
        joined = time.perf_counter()
        endpoints[:] = [service.address for service in (*others, fourth)]
        while not (await _followed([fourth])).get(fourth.address):  # noqa: ASYNC110  # as it says itself
            await asyncio.sleep(0.1)
        put = await producer.put_to(everything)
        settled = await flow.until(put.values())
        gained = _gained(before, await _followed([*others, fourth]))
        # What came twice would come by now: each shard has a later record.
        put = await producer.put_to(everything)
        await flow.until(put.values())
    if flow.counts != Counter(producer.put):
        raise RuntimeError(f"records were lost or doubled: {len(flow.counts - Counter(producer.put))} came twice")
    return _Found(
        begin_seconds=begun - began,
        killed_seconds=moved - killed,
        others_seconds=others_flow - killed,
        killed_share=len(owned) / shards,
        joined_seconds=settled - joined,
        joined_share=gained / shards,
        begin_processor=begin_processor,
        killed_processor=killed_processor,
    )


def _request(emulator: EmulatorProcess) -> OpenRequest:
    aws = AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file)))
    client = emulator.client()
    arn = client.describe_stream_summary(StreamName=_STREAM)["StreamDescriptionSummary"]["StreamARN"]
    made = client.register_stream_consumer(StreamARN=arn, ConsumerName="bench")["Consumer"]["ConsumerARN"]
    while client.describe_stream_consumer(ConsumerARN=made)["ConsumerDescription"]["ConsumerStatus"] != "ACTIVE":
        time.sleep(0.05)
    return OpenRequest(
        session_id=_SESSION,
        positions=resolve_initial_positions(aws, [_STREAM], "TRIM_HORIZON"),
        record_publisher=RecordPublisherType.EFO,
        consumers=(StreamConsumer(_STREAM, made, 1),),
    )


def run(rounds: int) -> Iterator[Case]:
    """The killed reader's shards, and those that move when it is replaced."""
    shards = int(os.environ.get("PENSTOCK_BENCH_FLEET_SHARDS", "2000"))
    found = []
    for _ in range(rounds):
        with ExitStack() as stack:
            emulator = stack.enter_context(start_emulator_process("--no-enforce-limits"))
            client = emulator.client()
            client.create_stream(StreamName=_STREAM, ShardCount=shards)
            client.get_waiter("stream_exists").wait(StreamName=_STREAM, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
            found.append(asyncio.run(_measure(emulator, _request(emulator), shards, stack)))
    _print_table(shards, found)
    yield Case(
        name="killed-shards-flow",
        peer_name="15-seconds",
        unit="s",
        ours=[one.killed_seconds for one in found],
        peers=[_AIM_SECONDS] * rounds,
    )
    yield Case(
        name="moved-by-a-fourth",
        peer_name="a-quarter",
        unit="of all",
        ours=[one.joined_share for one in found],
        peers=[_AIM_SHARE] * rounds,
    )


def _print_table(shards: int, found: list[_Found]) -> None:
    table = Table(title=f"{_READERS} reader services, {shards:,} shards; each record came once")
    for column in ("begun", "had by the killed", "flow again", "others", "joined: flow", "moved"):
        table.add_column(column, justify="right")
    for one in found:
        table.add_row(
            f"{one.begin_seconds:.1f} s",
            f"{one.killed_share:.1%}",
            f"{one.killed_seconds:.1f} s",
            f"{one.others_seconds:.1f} s",
            f"{one.joined_seconds:.1f} s",
            f"{one.joined_share:.1%}",
        )
    Console().print(table)
    table = Table(title="seconds of a processor meanwhile")
    table.add_column("until")
    for who in found[0].begin_processor:
        table.add_column(who, justify="right")
    for one in found:
        for until, taken in (("begun", one.begin_processor), ("flow again", one.killed_processor)):
            table.add_row(until, *(f"{seconds:.1f}" for seconds in taken.values()))
    Console().print(table)
