"""Random histories of a stream, a fleet of readers and its callers: every record comes exactly once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from datetime import timedelta
from itertools import groupby
from typing import TypeVar

from fleet_in_memory import Connection, Member, SkippingLoop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.efo_consumer import (
    FleetShardReader,
    OpenRequest,
    ReaderConfig,
    ReaderUnavailableError,
    ShardRange,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer.testing import FakeKinesis

T = TypeVar("T")
LEASE_SECONDS = 10.0
ENDPOINTS = ["a:1", "b:1", "c:1"]
INDICES = st.integers(0, 10**6)


class FleetMachine(RuleBasedStateMachine):
    """A caller as Spark is one: it writes positions down, reads ranges, commits late, and may begin again."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SkippingLoop()
        self.kinesis = FakeKinesis(event_records=3)
        self.facts: dict[ShardRange, list[int]] = {}
        self.fleet: FleetShardReader | None = None

    def run(self, call: Awaitable[T]) -> T:
        """Run a call, with all tasks beside it."""
        return self.loop.run_until_complete(call)

    @initialize(shards=st.integers(1, 5), buffer_segments=st.integers(2, 6), batch=st.integers(1, 50))
    def begin(self, shards: int, buffer_segments: int, batch: int) -> None:
        """Create a stream and open a session at its beginning."""
        self.kinesis.create_stream("s", shards)
        config = ReaderConfig(
            # About as many segments of three small records, so that some are evicted and read again.
            buffer_bytes_per_shard=buffer_segments * 4200,
            buffer_bytes=buffer_segments * 4200 * 3,
            promise_grace=timedelta(seconds=1),
            idle_offset_interval=timedelta(seconds=30),
        )

        async def members() -> dict[str, Member]:
            return {name: Member(name, self.kinesis, config, self.loop.time) for name in ENDPOINTS}

        self.members = self.run(members())
        self.batch_bytes = batch * 10
        self.written_down = [self.kinesis.trim_horizon("s")]
        self.run(self._open(0))

    async def _open(self, at: int) -> None:
        del self.written_down[at + 1 :]
        predecessor = self.fleet
        # A run that was not logged is known by its time alone, when the readers have forgotten it.
        self.kinesis.idle()
        self.fleet = FleetShardReader(
            ENDPOINTS,
            patience_seconds=3 * LEASE_SECONDS,
            lease_seconds=LEASE_SECONDS,
            clock=self.loop.time,
            connect=lambda endpoint, _: Connection(self.members[endpoint]),  # type: ignore[arg-type, return-value]  # by its methods
        )
        self.epoch = 0
        with suppress(ReaderUnavailableError):
            self.epoch = await self.fleet.open(OpenRequest(session_id="q", positions=self.written_down[at]))
        if predecessor is not None:
            await predecessor.aclose()

    @rule(index=INDICES, count=st.integers(1, 12))
    def write(self, index: int, count: int) -> None:
        """Somebody writes to an open shard."""
        shards = self.open_shards()
        self.kinesis.put("s", shards[index % len(shards)], count)

    @rule()
    def idle(self) -> None:
        """Time passes in Kinesis."""
        self.kinesis.idle()

    @precondition(lambda self: len(self.kinesis.shards) < 14)
    @rule(index=INDICES)
    def split(self, index: int) -> None:
        """A shard is closed, and continues as two."""
        shards = self.open_shards()
        self.kinesis.reshard("s", [shards[index % len(shards)]], 2)

    @precondition(lambda self: len(self.open_shards()) > 1)
    @rule(index=INDICES)
    def merge(self, index: int) -> None:
        """Two shards are closed, and continue as one."""
        shards = self.open_shards()
        first = index % (len(shards) - 1)
        self.kinesis.reshard("s", shards[first : first + 2], 1)

    @rule(
        max_records=st.sampled_from([0, 1, 2, 5, 20]),
        max_bytes=st.sampled_from([0, 1, 60]),
        wait_seconds=st.sampled_from([0.0, 0.3, 5.0]),
        reads=st.booleans(),
    )
    def step(self, max_records: int, max_bytes: int, wait_seconds: float, reads: bool) -> None:
        """The caller asks how far it may go, writes it down, and reads the ranges, or leaves that for later."""
        self.run(self._step(max_records, max_bytes, wait_seconds, reads))

    async def _step(self, max_records: int, max_bytes: int, wait_seconds: float, reads: bool) -> None:
        assert self.fleet is not None
        if not self.epoch:
            await self._open(len(self.written_down) - 1)
            if not self.epoch:
                return
        start = self.written_down[-1]
        try:
            found = await self.fleet.positions(
                "q", self.epoch, start, max_records=max_records, max_bytes=max_bytes, wait_seconds=wait_seconds
            )
        except ReaderUnavailableError:
            return
        if max_records:
            assert found.records <= max_records
        if found.positions != start:
            self.written_down.append(found.positions)
            if reads:
                await self._read(ranges_between(start, found.positions))

    async def _read(self, ranges: list[ShardRange]) -> bool:
        """Read ranges together, and compare each with what it gave before; False if no reader can be reached."""
        assert self.fleet is not None
        rows: dict[str, list[int]] = {shard_range.shard_id: [] for shard_range in ranges}
        order: list[str] = []
        try:
            async for batch in self.fleet.read_range("q", ranges, max_batch_bytes=self.batch_bytes):
                for shard, number in zip(
                    batch.column("shardId").to_pylist(), batch.column("sequenceNumber").to_pylist(), strict=True
                ):
                    rows[shard].append(int(number))
                    order.append(shard)
        except ReaderUnavailableError:
            return False
        assert len([*groupby(order)]) == len({*order}), "a shard's ranges come together"
        for shard_range in ranges:
            found = rows[shard_range.shard_id]
            assert self.facts.setdefault(shard_range, found) == found
        return True

    @rule(index=INDICES)
    def read_again(self, index: int) -> None:
        """A task is retried, or a batch of a predecessor is run once more."""
        if self.facts:
            self.run(self._read([list(self.facts)[index % len(self.facts)]]))

    @rule(index=INDICES)
    def commit(self, index: int) -> None:
        """The caller commits something that it wrote down, the last or one long ago."""
        assert self.fleet is not None
        if self.epoch:
            positions = self.written_down[index % len(self.written_down)]
            self.run(self.fleet.commit("q", self.epoch, positions))

    @rule(index=INDICES)
    def restart_caller(self, index: int) -> None:
        """The caller dies; its successor begins with something that was written down."""
        self.run(self._open(index % len(self.written_down)))

    @rule(name=st.sampled_from(ENDPOINTS))
    def cut_off(self, name: str) -> None:
        """A reader cannot be reached any more, in the middle of whatever it does."""
        self.members[name].cut.set()

    @rule(name=st.sampled_from(ENDPOINTS), batches=st.integers(1, 4))
    def cut_off_in_a_range(self, name: str, batches: int) -> None:
        """A reader will be cut off when it has given some batches of a range, and not all."""
        self.members[name].batches_until_cut = batches

    @rule(name=st.sampled_from(ENDPOINTS), seconds=st.sampled_from([0.1, 1.0, LEASE_SECONDS]))
    def cut_off_in_a_poll(self, name: str, seconds: float) -> None:
        """A reader is cut off while the caller waits for news, which come meanwhile."""
        self.loop.call_later(seconds, self.members[name].cut.set)
        self.loop.call_later(seconds * 2, self.kinesis.put, "s", self.open_shards()[0], 2)
        self.run(self._step(0, 0, seconds * 3, True))
        self.run(asyncio.sleep(seconds * 2))

    @rule(name=st.sampled_from(ENDPOINTS))
    def heal(self, name: str) -> None:
        """A reader can be reached again, with the sessions that are left to it."""
        self.members[name].cut.clear()

    @rule(name=st.sampled_from(ENDPOINTS))
    def restart_reader(self, name: str) -> None:
        """A reader dies, and starts with nothing."""
        self.run(self.members[name].restart())

    @rule(seconds=st.sampled_from([0.5, LEASE_SECONDS / 2, LEASE_SECONDS * 1.5, 40.0]))
    def pass_time(self, seconds: float) -> None:
        """No call comes for a while: leases may end."""
        self.run(asyncio.sleep(seconds))

    def teardown(self) -> None:
        """With all readers back, the caller reads to the end: then every record came exactly once, in order."""
        try:
            if self.fleet is not None:
                self.run(self._read_to_the_end())
                self.run(self.fleet.aclose())
            for member in self.members.values() if self.fleet is not None else ():
                self.run(member.local.aclose())
        finally:
            self.loop.close()

    async def _read_to_the_end(self) -> None:
        for member in self.members.values():
            member.batches_until_cut = None
            member.cut.clear()
        quiet = 0
        while quiet < 3:
            before = self.written_down[-1]
            # A fleet without a reachable reader is tried again after a second.
            await asyncio.sleep(2)
            await self._step(0, 0, 2 * LEASE_SECONDS, False)
            quiet = quiet + 1 if self.written_down[-1] == before else 0
        rows: dict[str, list[int]] = {}
        for start, end in zip(self.written_down, self.written_down[1:], strict=False):
            ranges = ranges_between(start, end)
            assert await self._read(ranges)
            for shard_range in ranges:
                rows.setdefault(shard_range.shard_id, []).extend(self.facts[shard_range])
        expected = {shard.shard_id: shard.sequence_numbers for shard in self.kinesis.shards.values()}
        assert {shard: rows.get(shard, []) for shard in expected} == expected
        assert_only_open(self.written_down[-1], self.open_shards())

    def open_shards(self) -> list[str]:
        """Give the shards that can be written to."""
        return [shard.shard_id for shard in self.kinesis.shards.values() if not shard.children]


def assert_only_open(positions: StreamPositions, open_shards: list[str]) -> None:
    """At the end only open shards have positions short of their end."""
    assert {shard for shard, at in positions.streams["s"].items() if not at.is_shard_end} == set(open_shards)


FleetMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)
TestFleet = FleetMachine.TestCase
