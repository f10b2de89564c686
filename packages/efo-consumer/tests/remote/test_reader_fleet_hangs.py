"""A reader that neither answers nor refuses: its shards wait, and move to other readers if there are any."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from inspect import Signature, signature
from typing import Any

import pytest
from fleet_in_memory import SkippingLoop

from penstock.efo_consumer import (
    FleetShardReader,
    LocalShardReader,
    LocationMismatchError,
    OpenRequest,
    PositionsSnapshot,
    ReaderUnavailableError,
    SessionNotFoundError,
    ShardStats,
    StaleEpochError,
)
from penstock.efo_consumer._remote.resume import ANSWER_SECONDS
from penstock.efo_consumer.testing import FakeKinesis

LEASE_SECONDS = 10.0
PATIENCE_SECONDS = 30.0


class Stopped:
    """A reader whose process can be stopped: then nothing that it is asked comes to an end."""

    deaggregates = True

    def __init__(self, local: LocalShardReader) -> None:
        self.local = local
        self.hangs = False
        self._goes_on = asyncio.Event()
        self.opened: list[OpenRequest] = []
        self.refusal: Exception | None = None
        self.abandoned: list[OpenRequest] = []
        """Requests to open that came while it was stopped."""
        self.closed: list[tuple[str, int]] = []
        """What it was asked to close meanwhile."""

    async def open(self, request: OpenRequest) -> int:
        self.opened.append(request)
        try:
            await self._hang()
        except asyncio.CancelledError:
            self.abandoned.append(request)
            raise
        if self.refusal is not None:
            raise self.refusal
        return await self.local.open(request)

    async def go_on(self) -> None:
        """Answer again, and first do what was asked meanwhile, though the callers have left."""
        self.hangs = False
        self._goes_on.set()
        abandoned, self.abandoned = self.abandoned, []
        for request in abandoned:
            await self.local.open(request)

    async def close_session(self, session_id: str, epoch: int) -> None:
        try:
            await self._hang()
        except asyncio.CancelledError:
            self.closed.append((session_id, epoch))
            raise
        await self.local.close_session(session_id, epoch)

    async def commit(self, *arguments: Any) -> None:
        await self._hang()
        await self.local.commit(*arguments)

    async def stats(self, session_id: str) -> list[ShardStats]:
        await self._hang()
        return await self.local.stats(session_id)

    async def positions(self, *arguments: Any, **options: Any) -> PositionsSnapshot:
        await self._hang()
        return await self.local.positions(*arguments, **options)

    async def aclose(self) -> None:
        """The reader stays."""

    async def _hang(self) -> None:
        if self.hangs:
            await self._goes_on.wait()


class Fleet:
    """A fleet over a stream of eight shards."""

    def __init__(self, clock: Callable[[], float], endpoints: Sequence[str]) -> None:
        self.kinesis = FakeKinesis()
        self.shards = self.kinesis.create_stream("s", 8)
        self.start = self.kinesis.trim_horizon("s")
        self.readers = {name: Stopped(LocalShardReader(self.kinesis, clock=clock)) for name in endpoints}
        self._clock = clock
        self.fleet = self.connect()

    def connect(self) -> FleetShardReader:
        """A caller's view of all readers."""
        return FleetShardReader(
            [*self.readers],
            patience_seconds=PATIENCE_SECONDS,
            lease_seconds=LEASE_SECONDS,
            clock=self._clock,
            connect=lambda endpoint, _: self.readers[endpoint],  # type: ignore[arg-type, return-value]  # by its methods
        )


Scenario = Callable[..., Awaitable[None]]


def in_fleet(*endpoints: str) -> Callable[[Scenario], Callable[..., None]]:
    """Run a scenario with a fleet of these readers and its clock, for two minutes of its time at most."""

    def decorate(scenario: Scenario) -> Callable[..., None]:
        def test(**options: Any) -> None:
            loop = SkippingLoop()

            async def with_fleet() -> None:
                made = Fleet(loop.time, endpoints)
                try:
                    async with asyncio.timeout(120):
                        await scenario(made, loop.time, **options)
                finally:
                    await made.fleet.aclose()
                    for reader in made.readers.values():
                        await reader.local.aclose()

            try:
                loop.run_until_complete(with_fleet())
            finally:
                loop.close()

        test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
        given = [one for name, one in signature(scenario).parameters.items() if name not in ("made", "clock")]
        test.__signature__ = Signature(given)  # type: ignore[attr-defined]  # for pytest
        return test

    return decorate


@in_fleet("a:1", "b:1")
async def test_a_reader_that_hangs_holds_up_its_own_shards_alone(made: Fleet, clock: Callable[[], float]) -> None:
    """It is waited for once; to try whether it came back takes a moment, and after the lease others have its shards."""
    epoch = await made.fleet.open(OpenRequest(session_id="q", positions=made.start))
    made.readers["b:1"].hangs = True
    for shard in made.shards:
        made.kinesis.put("s", shard)
    began, position, records = clock(), made.start, 0
    found = await made.fleet.positions("q", epoch, position, wait_seconds=5)
    assert 0 < found.records < len(made.shards)
    assert clock() - began <= 2 * ANSWER_SECONDS
    while (records := records + found.records) < len(made.shards):
        position = found.positions
        found = await made.fleet.positions("q", epoch, position, wait_seconds=5)
    assert LEASE_SECONDS <= clock() - began < 2 * LEASE_SECONDS


@in_fleet("a:1", "b:1")
async def test_a_reader_that_hangs_costs_the_others_no_lease(made: Fleet, clock: Callable[[], float]) -> None:
    """While the caller is busy with a batch, readers that answer still get its heartbeats."""
    await made.fleet.open(OpenRequest(session_id="q", positions=made.start))
    made.readers["b:1"].hangs = True
    await asyncio.sleep(6 * LEASE_SECONDS)
    assert [session.session_id for session in await made.readers["a:1"].local.sessions()] == ["q"]
    assert await made.readers["b:1"].local.sessions() == []


@in_fleet("a:1", "b:1")
async def test_a_reader_that_opens_late_does_not_supersede_the_run_that_asked_it(
    made: Fleet, clock: Callable[[], float]
) -> None:
    """Neither the first opening nor those that follow it give the run a successor when they are done at last."""
    late = made.readers["b:1"]
    late.hangs = True
    epoch = await made.fleet.open(OpenRequest(session_id="q", positions=made.start))
    first = late.abandoned[0]
    await asyncio.sleep(LEASE_SECONDS)
    assert len(late.abandoned) > 1
    await late.go_on()
    await asyncio.sleep(LEASE_SECONDS)
    assert made.fleet.away == []
    # The same call could also be done after those that came later.
    await late.local.open(first)
    for shard in made.shards:
        made.kinesis.put("s", shard)
    position, records = made.start, 0
    while records < len(made.shards):
        found = await made.fleet.positions("q", epoch, position, wait_seconds=5)
        position, records = found.positions, records + found.records


@pytest.mark.parametrize("is_closed_first", [True, False])
@in_fleet("a:1", "b:1")
async def test_a_session_that_was_closed_is_not_opened_late(
    made: Fleet, clock: Callable[[], float], is_closed_first: bool
) -> None:
    """By what the run had asked a reader that was stopped, in whatever order that does it; a new run gets it."""
    late = made.readers["b:1"]
    late.hangs = True
    request = OpenRequest(session_id="q", positions=made.start, owner="the run")
    epoch = await made.fleet.open(request)
    await asyncio.sleep(LEASE_SECONDS)
    await made.fleet.close_session("q", epoch)
    late.hangs = False
    joins = [one for one in late.abandoned if one.epoch]
    assert joins
    assert late.closed == [("q", epoch)]
    if is_closed_first:
        await late.local.close_session("q", epoch)
    for join in joins:
        if is_closed_first:
            with pytest.raises(SessionNotFoundError):
                await late.local.open(join)
        else:
            await late.local.open(join)
    if not is_closed_first:
        await late.local.close_session("q", epoch)
    assert await late.local.sessions() == []
    successor = made.connect()
    newer = await successor.open(request)
    assert newer > epoch
    await successor.close_session("q", newer)
    with pytest.raises(StaleEpochError, match=f"run {epoch} is over, {newer} is newer"):
        await late.local.open(joins[0])
    await successor.aclose()


@in_fleet("a:1", "b:1")
async def test_a_run_that_is_over_does_not_supersede_its_successor_late(
    made: Fleet, clock: Callable[[], float]
) -> None:
    """What it asked a stopped reader for changes nothing there when a newer run has the session."""
    late = made.readers["b:1"]
    late.hangs = True
    request = OpenRequest(session_id="q", positions=made.start)
    old = await made.fleet.open(request)
    await asyncio.sleep(LEASE_SECONDS)
    await made.fleet.aclose()
    abandoned, late.abandoned = late.abandoned, []
    assert {one.epoch for one in abandoned} == {0, old}
    await late.go_on()
    successor = made.connect()
    new = await successor.open(replace(request, owner="the successor"))
    try:
        assert new > old
        for one in abandoned:
            if one.epoch:
                with pytest.raises(StaleEpochError, match="the successor"):
                    await late.local.open(one)
            else:
                await late.local.open(one)
        for shard in made.shards:
            made.kinesis.put("s", shard)
        position, records = made.start, 0
        while records < len(made.shards):
            found = await successor.positions("q", new, position, wait_seconds=5)
            position, records = found.positions, records + found.records
    finally:
        await successor.aclose()


@in_fleet("a:1")
async def test_a_pause_of_the_only_reader_costs_none_of_its_buffers(made: Fleet, clock: Callable[[], float]) -> None:
    """Its shards wait and say so, then they continue as the same subscriptions."""
    epoch = await made.fleet.open(OpenRequest(session_id="q", positions=made.start))
    await made.fleet.positions("q", epoch, made.start)
    made.readers["a:1"].hangs = True
    await made.fleet.commit("q", epoch, made.start)
    stats = await made.fleet.stats("q")
    assert {one.shard_id for one in stats} == set(made.shards)
    assert all("waits for its reader: " in one.condition.cause for one in stats)
    await made.readers["a:1"].go_on()
    for shard in made.shards:
        made.kinesis.put("s", shard)
    position, records = made.start, 0
    while records < len(made.shards):
        found = await made.fleet.positions("q", epoch, position, wait_seconds=5)
        position, records = found.positions, records + found.records
    assert len(made.kinesis.subscriptions) == len(made.shards)


@in_fleet("a:1")
async def test_an_only_reader_that_stays_away_fails_the_query_after_its_patience(
    made: Fleet, clock: Callable[[], float]
) -> None:
    """Opening a session fails at once: the address may be wrong."""
    epoch = await made.fleet.open(OpenRequest(session_id="q", positions=made.start))
    made.readers["a:1"].hangs = True
    began = clock()
    with pytest.raises(ReaderUnavailableError, match="a:1: DEADLINE_EXCEEDED"):
        await made.fleet.positions("q", epoch, made.start)
    assert PATIENCE_SECONDS - 1 < clock() - began < PATIENCE_SECONDS + 2 * ANSWER_SECONDS
    began = clock()
    with pytest.raises(ReaderUnavailableError):
        await made.connect().open(OpenRequest(session_id="other", positions=made.start))
    assert clock() - began <= 2 * ANSWER_SECONDS


@in_fleet("a:1")
async def test_a_reader_that_was_restarted_for_another_account_fails_the_query(
    made: Fleet, clock: Callable[[], float]
) -> None:
    """Although the session was open there: the shards are not the caller's."""
    epoch = await made.fleet.open(OpenRequest(session_id="q", positions=made.start))
    reader = made.readers["a:1"]
    reader.hangs = True
    asking = asyncio.create_task(made.fleet.positions("q", epoch, made.start))
    await asyncio.sleep(2 * ANSWER_SECONDS)
    assert made.fleet.away == ["a:1"]
    await reader.local.close_session("q", epoch)
    reader.refusal = LocationMismatchError(stream="s", fact="account", caller="1", found="2")
    await reader.go_on()
    with pytest.raises(LocationMismatchError):
        await asking
    with pytest.raises(LocationMismatchError):
        await made.fleet.positions("q", epoch, made.start)
    # Which streams the session means, also before it names any shard.
    assert set(reader.opened[-1].positions.streams) == {"s"}


@in_fleet("a:1", "b:1")
async def test_a_long_poll_learns_which_run_took_its_place(made: Fleet, clock: Callable[[], float]) -> None:
    """The same client opens the session as a new run: the poll of the run before has the numbers of both."""
    first = await made.fleet.open(OpenRequest(session_id="q", positions=made.start))
    polling = asyncio.create_task(made.fleet.positions("q", first, made.start, wait_seconds=60))
    await asyncio.sleep(1)
    made.readers["b:1"].hangs = True
    second = await made.fleet.open(OpenRequest(session_id="q", positions=made.start))
    with pytest.raises(StaleEpochError) as caught:
        await polling
    assert (caught.value.epoch, caught.value.current_epoch) == (first, second)
