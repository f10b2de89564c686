"""Random histories of a stream whose oldest shards expire: what it still holds comes exactly once, whatever is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

from fleet_in_memory import SkippingLoop
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reader_homes import read

from penstock.efo_consumer import (
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    Shard,
    ShardEvent,
    ShardFailedError,
    ShardPosition,
)
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.efo_consumer.testing import FakeKinesis

INDEX = st.integers(0, 10**6)
KINDS = ["put"] * 3 + ["step"] * 4 + ["split", "merge", "fail", "open", "restart", "expire", "idle", "sleep"]
# Long ones: what goes wrong takes several reshards, ends and restarts.
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), INDEX), min_size=30, max_size=70)


def refusal(stream: str, shard: str, code: str) -> RecordPublisherFatalError:
    return RecordPublisherFatalError("no", stream=stream, shard_id=shard, code=code)


class Kinesis(FakeKinesis):
    """Knows shards that are gone no more, and takes its time to list the others."""

    def __init__(self, event_records: int, list_seconds: float) -> None:
        super().__init__(event_records=event_records)
        self._list_seconds = list_seconds

    async def list_shards(self, stream_name: str) -> list[Shard]:
        await asyncio.sleep(self._list_seconds)
        return await super().list_shards(stream_name)

    async def follow(self, stream: str, shard_id: str, position: ShardPosition) -> AsyncGenerator[ShardEvent, None]:
        if self.shards[stream, shard_id].gone:
            raise refusal(stream, shard_id, "ResourceNotFoundException")
        async for event in super().follow(stream, shard_id, position):
            yield event

    def open_shards(self) -> list[str]:
        return [shard.shard_id for shard in self.shards.values() if not shard.children]

    def change(self, what: str, index: int) -> None:
        """Let something happen to the stream."""
        live = self.open_shards()
        closed = [shard for shard in self.shards.values() if shard.children and not shard.gone]
        first = index % len(live)
        if what == "put":
            self.put("s", live[first], 1 + index % 8)
        elif what == "split" and len(self.shards) < 16:
            self.reshard("s", [live[first]], 2)
        elif what == "merge" and len(live) > 1:
            self.reshard("s", [live[first], live[first - 1]], 1)
        elif what == "fail":
            self.fail("s", live[first], refusal("s", live[first], "AccessDeniedException"))
        elif what == "expire" and closed:
            self.expire("s", closed[0].shard_id)
        elif what == "idle":
            self.idle()


class Caller:
    """Reads step by step, and begins again where it stands."""

    def __init__(self, kinesis: Kinesis, config: ReaderConfig, loop: SkippingLoop) -> None:
        self._kinesis, self._config, self._loop = kinesis, config, loop
        self.reader = LocalShardReader(kinesis, config, clock=loop.time)
        self._position = kinesis.trim_horizon("s")
        self.rows: list[int] = []

    async def open(self) -> None:
        self._epoch = await self.reader.open(OpenRequest(session_id="q", positions=self._position))

    async def restart(self) -> None:
        await self.reader.aclose()
        self.reader = LocalShardReader(self._kinesis, self._config, clock=self._loop.time)
        await self.open()

    async def step(self, max_records: int, *, commits: bool, wait_seconds: float = 0.5) -> None:
        try:
            found = await self.reader.positions(
                "q", self._epoch, self._position, max_records=max_records, wait_seconds=wait_seconds
            )
        except ShardFailedError:
            await self.open()
            return
        self.rows += await read(self.reader, self._position, found.positions)
        self._position = found.positions
        if commits:
            await self.reader.commit("q", self._epoch, self._position)


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    shards=st.integers(1, 4),
    event_records=st.integers(1, 4),
    buffer_bytes=st.sampled_from([5000, 20_000, 10**6]),
    list_seconds=st.sampled_from([0.0, 0.01, 3.0]),
)
# What follows a shard that is gone is begun before ListShards names another parent of it, which is gone as well.
@example(
    steps=[
        *[("put", 0)] * 20,
        *[("put", 3045), ("merge", 0), ("split", 0), ("expire", 0), ("put", 0), ("step", 0), ("put", 0)],
        *[("restart", 0), ("expire", 0), ("expire", 0)],
    ],
    shards=2,
    event_records=1,
    buffer_bytes=10**6,
    list_seconds=0.0,
)
def test_what_the_stream_still_holds_comes_exactly_once(
    steps: list[tuple[str, int]], shards: int, event_records: int, buffer_bytes: int, list_seconds: float
) -> None:
    """Through reshards, expiry, restarts, failures, tiny buffers and a slow ListShards."""
    loop = SkippingLoop()

    async def run() -> None:
        kinesis = Kinesis(event_records, list_seconds)
        kinesis.create_stream("s", shards)
        config = ReaderConfig(
            buffer_bytes_per_shard=buffer_bytes,
            buffer_bytes=buffer_bytes,
            promise_grace=timedelta(0),
            fail_on_data_loss=False,
        )
        caller = Caller(kinesis, config, loop)
        await caller.open()
        for what, index in steps:
            if what == "step":
                await caller.step([0, 0, 1, 3, 10][index % 5], commits=index % 2 == 0)
            elif what == "open":
                await caller.open()
            elif what == "restart":
                await caller.restart()
            elif what == "sleep":
                await asyncio.sleep([0.1, 1, 12, 40][index % 4])
            else:
                kinesis.change(what, index)
        kinesis.failures.clear()
        held = {number for shard in kinesis.shards.values() if not shard.gone for number in shard.sequence_numbers}
        for _ in range(200):
            if held <= set(caller.rows):
                break
            await caller.step(0, commits=False, wait_seconds=15)
        assert held <= set(caller.rows)
        assert len(caller.rows) == len(set(caller.rows))
        await caller.reader.aclose()

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
