"""Random histories of many callers at once have an order in which each call took effect in one step.

The checker is Wing and Gong's search: take any call that had begun before the first of the others returned, see
whether its answer fits the state, and go on with the rest. States that were tried are not tried again.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import pytest
from registry_homes import OpenStore, known

from penstock.registration import (
    AcquireRequest,
    ConflictPolicy,
    ConsumerRecord,
    Holding,
    Lease,
    LeaseSettings,
    LeaseStore,
    LocalConsumerRegistry,
    Renewal,
    StreamConsumerRegistrar,
)
from penstock.registration.errors import ConsumerHeldError, RegistrationError
from penstock.registration.testing import FakeKinesis, InMemoryLeaseStore, ManualClock

KEY = ("flights", "delays")
FREE: tuple[str | None, int] = (None, 0)
State = TypeVar("State")
Answer = TypeVar("Answer")
MOST_TURNS = 5000
STORES = ["memory", "sqlite", "dynamodb"]
SEEDS = {"memory": range(30), "sqlite": range(10), "dynamodb": range(2)}
CASES = [(kind, seed) for kind in STORES for seed in SEEDS[kind]]


@dataclass(frozen=True)
class Call:
    began: int
    returned: int
    what: tuple[Any, ...]
    answer: object


class History:
    """Calls in their order, and their answers."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._moments = itertools.count()

    async def record(self, what: tuple[Any, ...], awaitable: Awaitable[Answer]) -> Answer:
        began = next(self._moments)
        answer = await awaitable
        self.calls.append(Call(began, next(self._moments), what, answer))
        return answer

    def is_linearizable(self, state: State, step: Callable[[State, tuple[Any, ...], Any], State | None]) -> bool:
        """`step(state, what, answer)` is the state after the call, or None when the answer does not fit."""
        calls = sorted(self.calls, key=lambda call: call.began)
        tried: set[tuple[frozenset[int], State]] = set()
        todo = [(frozenset(range(len(calls))), state)]
        while todo:
            rest, state = todo.pop()
            if not rest:
                return True
            first_return = min(calls[index].returned for index in rest)
            for index in rest:
                if calls[index].began > first_return:
                    continue
                after = step(state, calls[index].what, calls[index].answer)
                if after is not None and (reached := (rest - {index}, after)) not in tried:
                    tried.add(reached)
                    todo.append(reached)
        return False


class StuckError(Exception):
    """A worker waits for something that no worker does."""


class Turns:
    """Pauses of those who wait, in which no time passes: no lease runs out and no patience ends.

    While somebody writes there is something to wait for, however slow the disk is: such pauses are not counted.
    """

    def __init__(self, most: int = MOST_TURNS) -> None:
        self.writers = 0
        self._most = most
        self._idle = 0

    async def pause(self, _seconds: float) -> None:
        self._idle += self.writers == 0
        if self._idle == self._most:
            raise StuckError
        await asyncio.sleep(0)


class Hesitant:
    """A store whose calls take a random number of turns on their way there and back."""

    def __init__(self, store: LeaseStore, seed: int, turns: Turns | None = None) -> None:
        self._store = store
        self._random = random.Random(seed)
        self._turns = turns or Turns()

    def __getattr__(self, name: str) -> Any:
        writes = name in ("write", "renew")

        async def call(*arguments: Any) -> Any:
            await self._hesitate()
            self._turns.writers += writes
            try:
                answer = await getattr(self._store, name)(*arguments)
            finally:
                self._turns.writers -= writes
            await self._hesitate()
            return answer

        return call

    async def _hesitate(self) -> None:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)


class Forgetful(InMemoryLeaseStore):
    """A store that loses updates: versions are not compared."""

    async def write(self, record: ConsumerRecord) -> bool:
        self._records[record.key] = replace(record, version=record.version + 1)
        return True


class Slow(InMemoryLeaseStore):
    """A store whose writes take many turns."""

    async def write(self, record: ConsumerRecord) -> bool:
        for _ in range(1000):
            await asyncio.sleep(0)
        return await super().write(record)


def store_step(state: tuple[int, int, float], what: tuple[Any, ...], answer: Any) -> tuple[int, int, float] | None:
    """The sequential meaning of a store: one record, (version, token, renewed at)."""
    version, token, _ = state
    match what:
        case ("get",):
            return state if answer == state else None
        case ("write", read, new_token):
            if answer != (read == version):
                return None
            return (version + 1, new_token, 0.0) if answer else state
        case ("renew", its_token, at):
            if answer != (its_token == token):
                return None
            return (version + 1, token, at) if answer else state
    raise AssertionError(what)


async def store_history(
    open_store: Callable[[], LeaseStore], seed: int, *, workers: int = 5, calls: int = 7
) -> History:
    history = History()
    store = open_store()
    await store.write(ConsumerRecord(stream_arn=KEY[0], consumer_name=KEY[1], created_at=1.0, holding=holding(0)))

    async def work(number: int) -> None:
        store, choose = Hesitant(open_store(), seed * 100 + number), random.Random(seed * 100 + number)

        async def get() -> tuple[int, int, float]:
            record = await store.get(*KEY)
            assert record is not None
            assert record.holding is not None
            return record.version, record.holding.fencing_token, record.holding.renewed_at

        async def write(version: int, token: int) -> bool:
            record = ConsumerRecord(
                stream_arn=KEY[0], consumer_name=KEY[1], created_at=1.0, version=version, holding=holding(token)
            )
            return bool(await store.write(record))

        async def renew(token: int, at: float) -> bool:
            renewal = Renewal(stream_arn=KEY[0], consumer_name=KEY[1], job_id="job", fencing_token=token, at=at)
            return await store.renew(renewal) is not None

        read = (1, 0, 0.0)
        for turn in range(calls):
            match choose.choice(["get", "write", "write", "renew"]):
                case "get":
                    read = await history.record(("get",), get())
                case "write":
                    token = 1000 * number + turn
                    await history.record(("write", read[0], token), write(read[0], token))
                case "renew":
                    at = float(1000 * number + turn)
                    await history.record(("renew", read[1], at), renew(read[1], at))

    async with asyncio.TaskGroup() as tasks:
        for number in range(workers):
            tasks.create_task(work(number))
    return history


def holding(token: int) -> Holding:
    return Holding(job_id="job", fencing_token=token, acquired_at=0.0, renewed_at=0.0, time_to_live_seconds=30.0)


@pytest.mark.parametrize(("kind", "seed"), CASES)
async def test_a_store_is_linearizable(open_store: OpenStore, kind: str, seed: int) -> None:
    """Reads, writes and renewals by five users of one record."""
    history = await store_history(lambda: open_store(kind), seed)
    assert history.is_linearizable((1, 0, 0.0), store_step)


async def test_a_store_that_loses_updates_is_found_out() -> None:
    """The checker can say no."""
    verdicts = []
    for seed in range(10):
        store = Forgetful()
        history = await store_history(partial(known, store), seed)
        verdicts.append(history.is_linearizable((1, 0, 0.0), store_step))
    assert not all(verdicts)


def lease_step(state: tuple[str | None, int], what: tuple[Any, ...], answer: Any) -> tuple[str | None, int] | None:
    """The sequential meaning of a registry whose leases do not run out: (holder, its token), tokens only grow."""
    holder, token = state
    match what:
        case ("acquire", job, policy):
            if answer[0] == "refused":
                return state if holder not in (None, job) and policy == "refuse" and answer[1] == holder else None
            free = holder in (None, job) or policy == "take_over"
            return (job, token + 1) if free and answer[1] == token + 1 else None
        case ("heartbeat", job, its_token):
            return state if answer == (state == (job, its_token)) else None
        case ("release", job, its_token):
            if answer != (state == (job, its_token)):
                return None
            return (None, token) if answer else state
    raise AssertionError(what)


async def lease_history(
    open_store: Callable[[], LeaseStore], seed: int, *, most_turns: int = MOST_TURNS
) -> tuple[History, FakeKinesis]:
    history = History()
    kinesis, clock, turns = FakeKinesis(looks=0), ManualClock(), Turns(most_turns)

    def open_registry(number: int) -> LocalConsumerRegistry:
        registrar = StreamConsumerRegistrar(kinesis, sleep=turns.pause, clock=clock)
        settings = LeaseSettings(grace_period=timedelta(hours=1))
        store = Hesitant(open_store(), seed * 100 + number, turns)
        return LocalConsumerRegistry(registrar, store, settings=settings, clock=clock, sleep=turns.pause)

    registries = [open_registry(number) for number in range(3)]

    async def work(number: int) -> None:
        choose = random.Random(seed * 100 + number)
        job = f"job-{number % 3}"
        last: Lease | None = None

        async def acquire(registry: LocalConsumerRegistry, policy: ConflictPolicy) -> tuple[str, object]:
            nonlocal last
            request = AcquireRequest(stream_name=KEY[0], consumer_name=KEY[1], job_id=job, conflict_policy=policy)
            try:
                last = await registry.acquire(request)
            except ConsumerHeldError as error:
                return "refused", error.holder_job_id
            except RegistrationError as error:
                return f"given, and {error.code}", error.facts["fencing_token"]
            return "given", last.fencing_token

        async def heartbeat(registry: LocalConsumerRegistry, lease: Lease) -> bool:
            return (await registry.heartbeat(lease)).held

        for _ in range(6):
            registry = choose.choice(registries)
            what = choose.choice(["acquire", "heartbeat", "release"]) if last else "acquire"
            if what == "acquire":
                policy = choose.choice([ConflictPolicy.REFUSE, ConflictPolicy.REFUSE, ConflictPolicy.TAKE_OVER])
                await history.record((what, job, policy.value), acquire(registry, policy))
                continue
            assert isinstance(last, Lease)
            call = heartbeat if what == "heartbeat" else LocalConsumerRegistry.release
            await history.record((what, job, last.fencing_token), call(registry, last))

    async with asyncio.TaskGroup() as tasks:
        for number in range(6):
            tasks.create_task(work(number))
    return history, kinesis


@pytest.mark.parametrize(("kind", "seed"), CASES)
async def test_leases_over_replicas_are_linearizable(open_store: OpenStore, kind: str, seed: int) -> None:
    """Three registries on one store, six callers of three jobs: acquire, take over, heartbeat, release."""
    history, kinesis = await lease_history(lambda: open_store(kind), seed)
    assert history.is_linearizable(FREE, lease_step)
    assert kinesis.names() == {"delays"}


async def test_leases_over_a_store_whose_disk_is_slow() -> None:
    """A caller that waits for a write asks hundreds of times meanwhile, and is not stuck."""
    histories = [await lease_history(partial(known, Slow()), seed, most_turns=200) for seed in range(5)]
    assert all(history.is_linearizable(FREE, lease_step) for history, _ in histories)


async def test_leases_over_a_store_that_loses_updates_are_found_out() -> None:
    """Two holders, one token twice, or a worker that waits for something that no worker does."""
    verdicts = []
    for seed in range(10):
        store, verdict = Forgetful(), False
        try:
            history, _ = await lease_history(partial(known, store), seed)
            verdict = history.is_linearizable(FREE, lease_step)
        except* StuckError:
            pass
        verdicts.append(verdict)
    assert not all(verdicts)
