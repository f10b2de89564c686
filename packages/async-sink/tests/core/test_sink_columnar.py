"""Entries that stay rows of columns behave like entries."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.async_sink import (
    All,
    AsyncSinkConfig,
    CallbackHandler,
    EntryFailure,
    KinesisRequestEntry,
    Ordering,
    PerShardRateLimitingStrategy,
    ResultHandler,
    aimd_strategy,
)
from penstock.async_sink.testing import FakeClock, FakeKinesisWriter


def entry_of(number: int) -> KinesisRequestEntry:
    """Sizes differ, and so do alphabets."""
    return KinesisRequestEntry(b"%d" % number + b"x" * (number * 7 % 13), f"{number}" + "ключ"[: number % 3])


def number_of(entry: KinesisRequestEntry) -> int:
    return int(entry.data.rstrip(b"x"))


def rows_of(numbers: Sequence[int]) -> pa.RecordBatch:
    """A slice of a larger batch, as it comes from a task."""
    entries = [entry_of(number) for number in (0, *numbers, 0)]
    columns = {
        "data": pa.array([entry.data for entry in entries], pa.binary()),
        "partitionKey": [entry.partition_key for entry in entries],
    }
    return pa.record_batch(columns).slice(1, len(numbers))


class PlannedWriter(FakeKinesisWriter):
    """Its destination takes or refuses entries as `plan` says, and keeps what it took."""

    def __init__(self, plan: "Plan", *arguments: Any, **keywords: Any) -> None:
        super().__init__(plan.submit, *arguments, **keywords)

    def get_order_key(self, entry: KinesisRequestEntry) -> Any:
        return number_of(entry) % 4 or None


@dataclass
class Plan:
    """Faults by a seed, request by request; what happened is kept."""

    random: Random
    requests: list[list[int]] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    dead: list[tuple[int, str, int]] = field(default_factory=list)
    told: list[tuple[str, int, int]] = field(default_factory=list)

    async def submit(self, entries: Sequence[KinesisRequestEntry], handler: ResultHandler[Any]) -> None:
        dice = self.random.random()
        await asyncio.sleep(0)
        if dice < 0.3:
            # Without a look at the entries.
            self.requests.append([handler.first_record_number, len(entries)])
            numbers = [number_of(entry) for entry in list(entries)] if dice < 0.2 else None
            if numbers is None:
                self.accepted.extend(map(number_of, entries))
            else:
                self.accepted.extend(numbers)
            handler.complete()
            return
        self.requests.append(numbers := [number_of(entry) for entry in entries])
        if dice < 0.4:
            refused = [entry for entry in entries if self.random.random() < 0.4]
            kept = set(map(number_of, refused))
            self.accepted.extend(number for number in numbers if number not in kept)
            handler.retry_for_entries(refused, throttled=False)
        elif dice < 0.75:
            failures = [
                EntryFailure(place, "x", throttled=self.random.random() < 0.5, final=self.random.random() < 0.1)
                for place in range(len(entries))
                if self.random.random() < 0.3
            ]
            failed = {failure.index for failure in failures}
            self.accepted.extend(number for place, number in enumerate(numbers) if place not in failed)
            handler.retry_failures(failures, lanes=[f"shard-{number % 3}" for number in numbers])
        elif dice < 0.8:
            handler.reject_request(code="Poison")
        elif dice < 0.9:
            await asyncio.Event().wait()
        elif dice < 0.91:
            handler.complete_exceptionally(ZeroDivisionError())
        else:
            handler.retry_failures([EntryFailure(place, throttled=False) for place in range(len(entries))])

    # An entry listener, for those who write with one.
    def acknowledged(self, entry_index: int, attempts: int) -> None:
        self.told.append(("acknowledged", entry_index, attempts))

    def rejected(self, entry_index: int, attempts: int, failure: EntryFailure) -> None:
        self.told.append(("rejected", entry_index, attempts))

    def abandoned(self, error: BaseException) -> None:
        self.told.append(("abandoned", -1, 0))


class RunPlan(Plan):
    """Its listener takes neighbours by one call."""

    def acknowledged_many(self, first_index: int, count: int, attempts: int) -> None:
        self.told.extend(("acknowledged", index, attempts) for index in range(first_index, first_index + count))


@dataclass(frozen=True)
class Options:
    batch: int
    in_flight: int
    ordering: Ordering
    max_attempts: int | None
    time_to_live: float | None
    terminal: bool
    sharded: bool

    def writer(self, plan: Plan, clock: FakeClock, states: Sequence[Any] = ()) -> PlannedWriter:
        config = AsyncSinkConfig(
            max_batch_size=self.batch,
            max_batch_size_in_bytes=80,
            max_record_size_in_bytes=80,
            max_buffered_bytes=400,
            max_buffered_requests=3 * self.batch + 5,
            max_in_flight_requests=self.in_flight,
            request_timeout=timedelta(seconds=1),
            ordering=self.ordering,
            max_attempts=self.max_attempts,
            time_to_live=None if self.time_to_live is None else timedelta(seconds=self.time_to_live),
        )
        shards = PerShardRateLimitingStrategy(records_per_second=50, hash_key=lambda entry: number_of(entry) % 3)
        return PlannedWriter(
            plan,
            config,
            clock=clock,
            random=plan.random.random,
            strategy=All(aimd_strategy(config, slow_start=True), shards) if self.sharded else None,
            terminal=CallbackHandler(
                lambda record: plan.dead.append((number_of(record.entry), record.reason.value, record.attempts))
            )
            if self.terminal
            else None,
            initial_states=states,
        )


options = st.builds(
    Options,
    batch=st.integers(1, 12),
    in_flight=st.integers(1, 4),
    ordering=st.sampled_from(Ordering),
    max_attempts=st.none() | st.integers(1, 4),
    time_to_live=st.none() | st.floats(0.5, 5.0),
    terminal=st.booleans(),
    sharded=st.booleans(),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["rows", "rows", "list", "one", "heard", "flush", "wait", "restore"]), st.integers(0, 40)
    ),
    min_size=1,
    max_size=10,
)


def entries_of(writer: PlannedWriter) -> list[int]:
    return [number_of(entry) for state in writer.snapshot_state() for entry, _ in state.entries]


async def play(script: Sequence[tuple[str, int]], seed: int, options: Options, *, in_runs: bool) -> tuple[Any, ...]:
    """Everything that can be seen of a writer that is driven by a script; without runs each entry is one at once."""
    clock, plan = FakeClock(), RunPlan(Random(seed))
    written, seen = 0, list[Any]()

    async def opened(states: Sequence[Any]) -> PlannedWriter:
        writer = options.writer(plan, clock, states)
        if not in_runs:
            fresh: Any = writer._dispatcher.buffer.fresh
            fresh.add_run = lambda run: [fresh.add(wrapper) for wrapper in run.wrappers()]
        return await writer.__aenter__()

    async def finish(work: Any) -> BaseException | None:
        task = asyncio.create_task(work)
        for _ in range(2_000):
            await clock.advance(0.3)
            if task.done():
                return task.exception()
        raise AssertionError("the writer hangs")

    writer = await opened(())
    for step, count in script:
        numbers, before = range(written, written + count), writer.records_written
        error = None
        if step in ("rows", "heard"):
            error = await finish(writer.write_many(rows_of(numbers), listener=plan if step == "heard" else None))
        elif step == "list":
            error = await finish(writer.write_many([entry_of(number) for number in numbers]))
        elif step == "one":
            error = await finish(writer.write(entry_of(written)))
        elif step == "flush":
            error = await finish(writer.flush(end_of_input=count % 2 == 0))
        elif step == "wait":
            await clock.advance(count / 10)
        if step in ("rows", "heard", "list", "one"):
            written += writer.records_written - before
        seen.append((step, type(error), writer.metrics, writer.gauges(), entries_of(writer)))
        if step == "restore" or error is not None:
            await writer.close()
            states = writer.snapshot_state()
            seen.append(states)
            writer = await opened(states)
    await finish(writer.flush(end_of_input=True))
    kept = entries_of(writer)
    await writer.close()
    seen.append((writer.metrics, writer.snapshot_state()))
    return plan, written, kept, seen


@settings(max_examples=40, deadline=None)
@given(script=steps, seed=st.integers(0, 2**32), options=options)
def test_rows_do_exactly_what_entries_do(script: list[tuple[str, int]], seed: int, options: Options) -> None:
    """The same requests, acknowledgements, dead letters, metrics, gauges and snapshots, under any faults; and each
    record is in exactly one place."""
    plan, written, kept, seen = asyncio.run(play(script, seed, options, in_runs=True))
    same = asyncio.run(play(script, seed, options, in_runs=False))
    assert (plan.requests, plan.accepted, plan.dead) == (same[0].requests, same[0].accepted, same[0].dead)
    assert (plan.told, written, kept, seen) == (same[0].told, *same[1:])
    refused = [place for kind, place, _ in plan.told if kind == "rejected"]
    everywhere = Counter(plan.accepted) + Counter(number for number, *_ in plan.dead) + Counter(kept)
    assert everywhere.total() + len(refused) == written
    assert set(everywhere.values()) <= {1}


class FatedPlan(Plan):
    """What becomes of an entry depends on the entry and its attempt alone, however requests are cut."""

    def __init__(self, random: Random, seed: int) -> None:
        super().__init__(random)
        self.seed = seed
        self.attempts = Counter[int]()

    async def submit(self, entries: Sequence[KinesisRequestEntry], handler: ResultHandler[Any]) -> None:
        await asyncio.sleep(0)
        failures = []
        for place, entry in enumerate(entries):
            number = number_of(entry)
            self.attempts[number] += 1
            dice = Random(f"{self.seed} {number} {self.attempts[number]}").random()
            if dice < 0.6:
                self.accepted.append(number)
            else:
                failures.append(EntryFailure(place, "x", throttled=dice < 0.8, final=dice > 0.95))
        handler.retry_failures(failures, lanes=[f"shard-{number_of(entry) % 3}" for entry in entries])


async def fate(counts: Sequence[int], seed: int, options: Options, *, many: bool) -> tuple[Any, ...]:
    """What becomes of each record, and the metrics that do not depend on how requests are cut."""
    clock, plan = FakeClock(), FatedPlan(Random(seed), seed)

    async def write() -> None:
        async with options.writer(plan, clock) as writer:
            written = 0
            for step, count in enumerate(counts):
                numbers = range(written, written := written + count)
                entries = [entry_of(number) for number in numbers]
                if not many:
                    for entry in entries:
                        await writer.write(entry)
                else:
                    await writer.write_many(rows_of(numbers) if step % 2 else entries)
            await writer.flush(end_of_input=True)
            counted.append(writer.metrics)

    counted: list[Any] = []
    task = asyncio.create_task(write())
    for _ in range(5_000):
        await clock.advance(0.3)
        if task.done():
            break
    task.result()
    (metrics,) = counted
    names = ("records_out", "bytes_out", "submitted", "bytes_submitted", "failed", "retried", "throttled", "rejected")
    order = plan.accepted if options.ordering is Ordering.STRICT else sorted(plan.accepted)
    by_key = [[number for number in plan.accepted if number % 4 == key] for key in (1, 2, 3)]
    kept_order = by_key if options.ordering is Ordering.PER_KEY else []
    return order, kept_order, sorted(plan.dead), metrics.attempts, *(getattr(metrics, name) for name in names)


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(0, 25), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
    options=options.map(lambda each: replace(each, time_to_live=None, terminal=True)),
)
def test_many_are_written_as_one_by_one(counts: list[int], seed: int, options: Options) -> None:
    """Record for record the same fate, attempts and order, whether in record batches, lists, or each alone."""
    together = asyncio.run(fate(counts, seed, options, many=True))
    assert together == asyncio.run(fate(counts, seed, options, many=False))
