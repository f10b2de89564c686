"""Any history of registries on one store, whose clocks are wrong, that stand still, and whose store answers late.

The world has one true time, that of an event loop that waits for nothing. Each process has a monotonic clock of its own
speed and a time of day that is stepped; it does nothing while it is paused, and what reaches it then is there when it
goes on. Whatever happens: nobody ends the lease of a holder that it could have heard, and a dead one does not stay.
"""

import asyncio
import math
import selectors
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from registry_homes import OpenStore, Unasked

from penstock.registration import (
    AcquireRequest,
    ConflictPolicy,
    ConsumerRecord,
    Heartbeat,
    Holding,
    Lease,
    LeaseKeeper,
    LeaseSettings,
    LocalConsumerRegistry,
    RegistrarConfig,
    Renewal,
    StreamConsumerRegistrar,
)
from penstock.registration.errors import (
    ConsumerHeldError,
    LeaseLostError,
    LeaseStoreError,
    RegistrationError,
    RegistryUnavailableError,
)
from penstock.registration.testing import FakeKinesis, InMemoryLeaseStore, ManualClock

TIME_TO_LIVE = 6.0
GRACE = 3.0
LIFE = TIME_TO_LIVE + GRACE
SPEEDS = (0.9, 1.0, 1.1)
SWEEP = timedelta(seconds=2)
# A lease that is being registered must not live longer than any other, or the model would have two lives.
QUICK = RegistrarConfig(register_timeout=timedelta(seconds=3), deregister_timeout=timedelta(seconds=3))
Answer = TypeVar("Answer")


class TimelessSelector(selectors.DefaultSelector):
    """Moves the loop's time instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits for something that never comes")
        self.now += max(0.0, timeout)
        return super().select(0)


class TimelessLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = TimelessSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now


class Process:
    """What has clocks of its own, and may stand still."""

    def __init__(self, loop: TimelessLoop, speed: float, time_of_day: float = 0.0) -> None:
        self.loop = loop
        self.speed = speed
        self.time_of_day = 1_750_000_000.0 + time_of_day
        self.running = asyncio.Event()
        self.running.set()
        self.is_dead = False
        # When it resumed after a pause, or after hearing nothing: earlier observations do not count.
        self.hindered_at = loop.time()
        self.hindered_since: float | None = None
        self.deaf_since: float | None = None

    def clock(self) -> float:
        return 100.0 + self.loop.time() * self.speed

    def wall_clock(self) -> float:
        return self.time_of_day + self.loop.time() * self.speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.speed)
        await self.gate()

    async def gate(self) -> None:
        await self.running.wait()
        if self.is_dead:
            raise RegistryUnavailableError(where="the process", reason="killed")

    def pause(self) -> None:
        self.running.clear()
        self.hindered_since = self.loop.time()

    def resume(self) -> None:
        self.running.set()
        since, self.hindered_since = self.hindered_since, None
        if since is not None and self.loop.time() - since > TIME_TO_LIVE / 2:
            self.hindered_at = self.loop.time()


class Truth(InMemoryLeaseStore):
    """The store itself, which knows when each holder was last heard, and asks whether an end was right."""

    def __init__(self, world: "Replicas") -> None:
        super().__init__()
        self.world = world
        self.heard_at: dict[str, float] = {}

    async def write_as(self, writer: "Replica", record: ConsumerRecord) -> bool:
        before = self._records.get(record.key)
        if before is not None and before.version == record.version and before.holding is not None:
            same = record.holding is not None and record.holding.job_id == before.holding.job_id
            if not same:
                self.world.ended(writer, before.holding, self.heard_at[before.holding.job_id])
        written = await self.write(record)
        if written and record.holding is not None:
            self.heard_at[record.holding.job_id] = self.world.loop.time()
        return written

    async def renew(self, renewal: Renewal) -> float | None:
        answer = await super().renew(renewal)
        if answer is not None:
            self.heard_at[renewal.job_id] = self.world.loop.time()
        return answer

    @property
    def holder(self) -> str | None:
        record = next(iter(self._records.values()), None)
        return None if record is None or record.holding is None else record.holding.job_id


class Wire:
    """The store as a replica reaches it: late, or not at all."""

    def __init__(self, truth: Truth, process: "Replica") -> None:
        self.truth = truth
        self.process = process
        self.late_seconds = 0.0
        self.is_cut = False

    async def _call(self, carry_out: Callable[[], Awaitable[Answer]]) -> Answer:
        late = self.late_seconds
        await asyncio.sleep(late / 2)
        if self.is_cut:
            await asyncio.sleep(1)
            await self.process.gate()
            raise LeaseStoreError(store="memory", reason="cut")
        answer = await carry_out()
        await asyncio.sleep(late / 2)
        await self.process.gate()
        return answer

    async def get(self, stream_arn: str, consumer_name: str) -> ConsumerRecord | None:
        return await self._call(lambda: self.truth.get(stream_arn, consumer_name))

    async def list(self) -> list[ConsumerRecord]:
        return await self._call(self.truth.list)

    async def write(self, record: ConsumerRecord) -> bool:
        return await self._call(lambda: self.truth.write_as(self.process, record))

    async def renew(self, renewal: Renewal) -> float | None:
        return await self._call(lambda: self.truth.renew(renewal))

    async def close(self) -> None:
        """Nothing is open."""


class Calls:
    """Kinesis as a replica reaches it."""

    def __init__(self, kinesis: FakeKinesis, process: Process) -> None:
        self.kinesis = kinesis
        self.process = process

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        await self.process.gate()
        answer = getattr(self.kinesis, operation)(**parameters)
        await self.process.sleep(0.05)
        found: dict[str, Any] = answer
        return found

    async def close(self) -> None:
        """Nothing is open."""


class Replica(Process):
    def __init__(self, world: "Replicas", speed: float, time_of_day: float) -> None:
        super().__init__(world.loop, speed, time_of_day)
        self.wire = Wire(world.truth, self)
        self.registry = LocalConsumerRegistry(
            StreamConsumerRegistrar(
                Calls(world.kinesis, self), QUICK, sleep=self.sleep, random=lambda: 0.5, clock=self.clock
            ),
            self.wire,
            settings=LeaseSettings(
                default_time_to_live=timedelta(seconds=TIME_TO_LIVE), grace_period=timedelta(seconds=GRACE)
            ),
            clock=self.clock,
            wall_clock=self.wall_clock,
            sleep=self.sleep,
        )
        self.sweeping = world.loop.create_task(self.registry.sweep_for_ever(SWEEP))

    def hinder_wire(self, seconds: float, *, is_cut: bool) -> None:
        """A short absence costs each holder at most one heartbeat."""
        now = self.loop.time()
        if self.deaf_since is not None and now - self.deaf_since > TIME_TO_LIVE / 2:
            self.hindered_at = now
        self.wire.late_seconds, self.wire.is_cut = seconds, is_cut
        is_deaf = is_cut or seconds > TIME_TO_LIVE / 2
        self.deaf_since = (self.deaf_since or now) if is_deaf else None

    def kill(self) -> None:
        self.is_dead = True
        self.running.set()
        self.sweeping.cancel()


class Job(Process, Unasked):
    """A job with its keeper, which reaches one replica at a time."""

    def __init__(self, world: "Replicas", job_id: str, speed: float, replica: Replica, policy: ConflictPolicy) -> None:
        super().__init__(world.loop, speed)
        self.world = world
        self.job_id = job_id
        self.at = replica
        self.policy = policy
        self.lost: LeaseLostError | None = None
        self.holds = False
        self.is_asking = False
        self.leaving = asyncio.Event()
        self.task = world.loop.create_task(self.run())

    async def heartbeat(self, lease: Lease) -> Heartbeat:
        await self.gate()
        answer = await self.world.reach(self.at, lambda registry: registry.heartbeat(lease))
        await self.gate()
        return answer

    async def acquire(self, request: AcquireRequest) -> Lease:
        await self.gate()
        self.is_asking = True
        try:
            lease = await self.world.reach(self.at, lambda registry: registry.acquire(request))
        finally:
            self.is_asking = False
        await self.gate()
        return lease

    async def run(self) -> None:
        request = AcquireRequest(
            stream_name="flights", consumer_name="delays", job_id=self.job_id, conflict_policy=self.policy
        )
        while True:
            try:
                sent_at = self.clock()
                lease = await self.acquire(request)
                break
            except RegistrationError:
                await self.sleep(1)
        self.holds = True
        # Without a limit: a job that stops after ten minutes without an answer loses its lease by its own choice.
        keeping = LeaseKeeper(self, patience_seconds=math.inf, clock=self.clock, sleep=self.sleep)
        async with keeping as keeper:
            # A wait may have been longer than the lease lives: the keeper asks at once then.
            keeper.keep(lease, self.on_lost, acquired_at=sent_at, request=request, on_regained=lambda _: None)
            await self.leaving.wait()
            lease = keeper.drop(lease)
        while True:
            try:
                await self.gate()
                await self.world.reach(self.at, lambda registry: registry.release(lease))
                return
            except RegistrationError:
                await self.sleep(1)

    def on_lost(self, error: LeaseLostError) -> None:
        self.lost = error
        self.holds = False

    def kill(self) -> None:
        self.is_dead = True
        self.running.set()
        self.task.cancel()


class Replicas(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = TimelessLoop()
        self.truth = Truth(self)
        self.kinesis = FakeKinesis()
        self.replicas: list[Replica] = []
        self.jobs: list[Job] = []
        self.count = 0
        self.has_failed: list[str] | None = None

    # What is true whatever happens.

    def ended(self, replica: Replica, holding: Holding, heard_at: float) -> None:
        """A replica ends a lease, or gives its consumer to another job: asked at that very moment."""
        job = next(job for job in self.jobs if job.job_id == holding.job_id)
        if job.leaving.is_set() or job.is_asking:
            # It gives the lease back, or could not get what it asks for.
            return
        now = self.loop.time()
        least = LIFE / max(SPEEDS) - 0.001
        checks = {
            f"{holding} was heard {now - heard_at:.1f} s ago": now - heard_at >= least,
            f"its judge could hear for {now - replica.hindered_at:.1f} s": now - replica.hindered_at >= least,
            "its judge stands still or hears nothing": replica.hindered_since is None,
        }
        wrong = [text for text, is_right in checks.items() if not is_right]
        if wrong:
            self.has_failed = self.has_failed or wrong

    async def reach(self, replica: Replica, call: Callable[[LocalConsumerRegistry], Awaitable[Answer]]) -> Answer:
        await replica.gate()
        return await call(replica.registry)

    def go_on(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))
        assert self.has_failed is None, self.has_failed
        self.nobody_is_lost_without_a_successor()

    def nobody_is_lost_without_a_successor(self) -> None:
        for job in self.jobs:
            if job.lost is not None:
                others = [one.job_id for one in self.jobs if one is not job]
                assert any(repr(other) in job.lost.reason for other in others), job.lost

    # What happens.

    @initialize(
        speeds=st.lists(st.sampled_from(SPEEDS), min_size=3, max_size=3),
        times=st.lists(st.integers(-600, 600), min_size=3, max_size=3),
    )
    def begin(self, speeds: list[float], times: list[int]) -> None:
        async def open_all() -> None:
            self.replicas = [Replica(self, *both) for both in zip(speeds, times, strict=True)]

        self.loop.run_until_complete(open_all())
        self.start(self.replicas[0], 1.0, ConflictPolicy.WAIT)
        self.go_on(2)

    def start(self, replica: Replica, speed: float, policy: ConflictPolicy) -> None:
        self.count += 1
        job_id = f"job-{self.count}"

        async def make() -> None:
            self.jobs.append(Job(self, job_id, speed, replica, policy))

        self.loop.run_until_complete(make())

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.go_on(seconds)

    @rule(index=st.integers(0, 2), seconds=st.integers(-600, 600))
    def a_time_of_day_is_stepped(self, index: int, seconds: float) -> None:
        self.replicas[index].time_of_day += seconds
        self.go_on(0.1)

    @rule(index=st.integers(0, 2), seconds=st.sampled_from([0.3, 1.0, 4.0, 10.0, 60.0]))
    def a_registry_stands_still(self, index: int, seconds: float) -> None:
        replica = self.replicas[index]
        replica.pause()
        self.go_on(seconds)
        replica.resume()
        self.go_on(0.01)

    @rule(seconds=st.sampled_from([4.0, 10.0, 60.0]))
    def all_registries_stand_still(self, seconds: float) -> None:
        for replica in self.replicas:
            replica.pause()
        self.go_on(seconds)
        for replica in self.replicas:
            replica.resume()
        self.go_on(0.01)

    @rule(index=st.integers(0, 2), late=st.sampled_from([0.0, 0.2, 1.0, 1.8, 5.0, 20.0]), cut=st.booleans())
    def the_store_answers_late_or_not_at_all(self, index: int, late: float, cut: bool) -> None:
        self.replicas[index].hinder_wire(late, is_cut=cut)
        self.go_on(0.1)

    @rule(seconds=st.sampled_from([1.0, 5.0, 12.0, 60.0]))
    def the_store_is_away(self, seconds: float) -> None:
        for replica in self.replicas:
            replica.hinder_wire(0.0, is_cut=True)
        self.go_on(seconds)
        for replica in self.replicas:
            replica.hinder_wire(0.0, is_cut=False)
        self.go_on(0.1)

    @rule(index=st.integers(0, 2), speed=st.sampled_from(SPEEDS))
    def a_registry_is_killed_and_started(self, index: int, speed: float) -> None:
        old = self.replicas[index]
        old.kill()

        async def open_one() -> None:
            self.replicas[index] = Replica(self, speed, 0.0)

        self.loop.run_until_complete(open_one())
        for job in self.jobs:
            if job.at is old:
                job.at = self.replicas[index]
        self.go_on(0.1)

    @precondition(lambda self: len([job for job in self.jobs if not job.is_dead]) < 4)
    @rule(index=st.integers(0, 2), speed=st.sampled_from(SPEEDS), policy=st.sampled_from(["refuse", "wait"]))
    def a_rival_comes(self, index: int, speed: float, policy: str) -> None:
        self.start(self.replicas[index], speed, ConflictPolicy(policy))
        self.go_on(0.1)

    @rule(which=st.integers(0, 100), seconds=st.sampled_from([2.0, 5.0, 20.0]))
    def a_job_stands_still(self, which: int, seconds: float) -> None:
        job = self.jobs[which % len(self.jobs)]
        if not job.is_dead:
            job.pause()
            self.go_on(seconds)
            job.resume()
            self.go_on(0.1)

    @rule(which=st.integers(0, 100))
    def a_job_is_killed(self, which: int) -> None:
        self.jobs[which % len(self.jobs)].kill()
        self.go_on(0.1)

    @rule(which=st.integers(0, 100))
    def a_job_leaves(self, which: int) -> None:
        self.jobs[which % len(self.jobs)].leaving.set()
        self.go_on(0.1)

    @rule(which=st.integers(0, 100), index=st.integers(0, 2))
    def a_job_reaches_another_registry(self, which: int, index: int) -> None:
        self.jobs[which % len(self.jobs)].at = self.replicas[index]
        self.go_on(0.1)

    @rule(index=st.integers(0, 2))
    def an_operator_collects_garbage(self, index: int) -> None:
        replica = self.replicas[index]

        async def collect() -> None:
            try:
                await self.reach(replica, lambda registry: registry.collect_garbage())
            except RegistrationError:
                return

        self.loop.create_task(collect())
        self.go_on(1)

    # What must come true in the end.

    def teardown(self) -> None:
        try:
            if self.replicas and self.has_failed is None:
                self.all_is_well_again()
        finally:
            processes: list[Job | Replica] = [*self.jobs, *self.replicas]
            for process in processes:
                process.kill()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.close()

    def all_is_well_again(self) -> None:
        for replica in self.replicas:
            replica.hinder_wire(0.0, is_cut=False)
        self.go_on(25)
        self.go_on(3 * LIFE)
        alive = [job for job in self.jobs if not job.is_dead and not job.leaving.is_set() and job.lost is None]
        if alive:
            # One of them has the consumer, and the consumer is there.
            assert self.truth.holder in {job.job_id for job in alive}
            assert self.kinesis.names() == {"delays"}
            holding = [job for job in alive if job.holds]
            assert [job.job_id for job in holding] == [self.truth.holder]
            holding[0].kill()
            self.start(self.replicas[1], 1.0, ConflictPolicy.WAIT)
            rivals = [job.job_id for job in self.jobs if not job.is_dead and job.lost is None]
            self.go_on(3 * LIFE)
            assert self.truth.holder in rivals
        for job in self.jobs:
            job.kill()
        self.go_on(4 * LIFE)
        assert self.kinesis.names() == set()


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(
    # Failures are not made shorter: a history of a few steps less costs minutes.
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


@pytest.mark.parametrize(
    ("kind", "wrong_by"), [("sqlite", -120.0), ("sqlite", 45.0), ("sqlite", -8.0), ("dynamodb", -120.0)]
)
async def test_a_replica_with_a_wrong_clock_ends_nothing_that_lives_and_all_that_is_dead(
    open_store: OpenStore, kind: str, wrong_by: float
) -> None:
    """Among three on one table: leases that are kept through others stay, rivals stay out, the dead go."""
    kinesis, clock, time_of_day = FakeKinesis(), ManualClock(0.0), ManualClock()

    def open_replica(wrong_by: float) -> LocalConsumerRegistry:
        def now() -> float:
            return time_of_day() + clock() + wrong_by

        return LocalConsumerRegistry(
            StreamConsumerRegistrar(kinesis, QUICK, sleep=clock.sleep, clock=clock),
            open_store(kind),
            settings=LeaseSettings(
                default_time_to_live=timedelta(seconds=TIME_TO_LIVE), grace_period=timedelta(seconds=GRACE)
            ),
            clock=clock,
            wall_clock=now,
            sleep=clock.sleep,
        )

    replicas = [open_replica(0.0), open_replica(wrong_by), open_replica(0.0)]

    def request_for(job_id: str, consumer_name: str, **options: Any) -> AcquireRequest:
        return AcquireRequest(stream_name="flights", consumer_name=consumer_name, job_id=job_id, **options)

    leases = [await replicas[number].acquire(request_for(f"job-{number}", f"live-{number}")) for number in range(3)]

    async def time_passes(seconds: int, *, are_kept: bool) -> None:
        for _ in range(seconds):
            clock.advance(1)
            for replica, lease in zip(replicas, leases, strict=True):
                if are_kept:
                    assert (await replica.heartbeat(lease)).held
                await replica.sweep()

    await time_passes(20, are_kept=True)
    assert kinesis.names() == {"live-0", "live-1", "live-2"}
    for replica in replicas:
        for lease in leases:
            with pytest.raises(ConsumerHeldError, match=repr(lease.job_id)):
                await replica.acquire(request_for("rival", lease.consumer_name))
    await time_passes(round(LIFE) - 2, are_kept=False)
    assert kinesis.names() == {"live-0", "live-1", "live-2"}
    await time_passes(4, are_kept=False)
    assert kinesis.names() == set()
