"""Whatever the destination does, no record is forgotten."""

import asyncio
from collections import Counter
from datetime import timedelta
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.async_sink import (
    All,
    AsyncSinkConfig,
    CallbackHandler,
    DeadLetterHandler,
    EntryFailure,
    Ordering,
    PerShardRateLimitingStrategy,
    TerminalRecord,
    aimd_strategy,
)
from penstock.async_sink.errors import RecordsRejectedError
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeRequest, FakeWriter


class Fickle(FakeDestination):
    """Accepts, refuses in part, raises, or never answers."""

    def __init__(self, random: Random, fatal: bool) -> None:
        super().__init__()
        self.random = random
        self.fatal = fatal

    async def submit(self, entries, handler) -> None:  # type: ignore[no-untyped-def]  # as in the base
        request = FakeRequest(list(entries), handler)
        self.requests.append(request)
        dice = self.random.random()
        await asyncio.sleep(0)
        if dice < 0.4:
            self.accept(request)
        elif dice < 0.8:
            failed = [index for index in range(len(entries)) if self.random.random() < 0.3]
            self.fail(*failed)(request) if failed else self.accept(request)
        elif dice < 0.9:
            await request.answer.wait()
        elif self.fatal and dice > 0.97:
            raise ZeroDivisionError
        else:
            self.fail(throttled=False)(request)


class Hostile(Fickle):
    """Refuses requests for a poisonous entry too, refuses entries permanently, and names lanes."""

    async def submit(self, entries, handler) -> None:  # type: ignore[no-untyped-def]  # as in the base
        if any(entry.endswith("3") for entry in entries) and self.random.random() < 0.5:
            self.requests.append(FakeRequest(list(entries), handler))
            await asyncio.sleep(0)
            handler.reject_request(code="Poison")
        elif self.random.random() < 0.5:
            self.requests.append(request := FakeRequest(list(entries), handler))
            failures = [
                EntryFailure(index, "x", throttled=self.random.random() < 0.5, final=self.random.random() < 0.1)
                for index in range(len(entries))
                if self.random.random() < 0.4
            ]
            failed = {failure.index for failure in failures}
            self.accepted.extend(entry for index, entry in enumerate(request.entries) if index not in failed)
            handler.retry_failures(failures, lanes=[f"shard-{int(entry) % 3}" for entry in entries])
        else:
            await super().submit(entries, handler)


class KeyedFakeWriter(FakeWriter):
    """A third of the entries has no key."""

    def get_order_key(self, entry: Any) -> Any:
        return int(entry) % 3 or None


def assert_shares_are_right(writer: FakeWriter) -> None:
    """The counts of each lane and each key agree with the entries in the buffer."""
    buffer, held = writer._dispatcher.buffer, Counter[Any]()
    for wrapper in buffer:
        if wrapper.lane is not None:
            held[wrapper.lane] += 1
        if buffer.keeps_keys and (key := writer.get_order_key(wrapper.entry)) is not None:
            held[(key,)] += 1
    assert {name: entries for name, (entries, _) in buffer._shares.held.items()} == held


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 120),
    batch=st.integers(1, 12),
    in_flight=st.integers(1, 4),
    fatal=st.booleans(),
    ordering=st.sampled_from(Ordering),
    max_attempts=st.none() | st.integers(1, 4),
    time_to_live=st.none() | st.floats(0.5, 10.0),
    handler=st.sampled_from(["none", "callback", "asynchronous", "dead letters", "failing"]),
    sharded=st.booleans(),
)
def test_every_record_is_acknowledged_once_dead_lettered_or_in_the_snapshot(
    seed: int,
    count: int,
    batch: int,
    in_flight: int,
    fatal: bool,
    ordering: Ordering,
    max_attempts: int | None,
    time_to_live: float | None,
    handler: str,
    sharded: bool,
) -> None:
    """With any options and failures, each record is in exactly one of the three, and nothing hangs."""

    async def run() -> None:
        clock, random = FakeClock(), Random(seed)
        fake, dead = Hostile(Random(seed), fatal), list[str]()

        def callback(record: TerminalRecord[Any]) -> None:
            if handler == "failing" and random.random() < 0.3:
                raise OSError("disk full")
            dead.append(record.entry)

        async def asynchronous(record: TerminalRecord[Any]) -> None:
            await asyncio.sleep(0)
            dead.append(record.entry)

        letters = FakeDestination()
        handlers: dict[str, Any] = {
            "none": None,
            "callback": CallbackHandler(callback),
            "failing": CallbackHandler(callback),
            "asynchronous": CallbackHandler(asynchronous),
            "dead letters": DeadLetterHandler(lambda: FakeWriter(letters, converter=lambda each: each.entry)),
        }
        config = AsyncSinkConfig(
            max_batch_size=batch,
            max_in_flight_requests=in_flight,
            max_buffered_requests=batch + 5,
            request_timeout=timedelta(seconds=1),
            ordering=ordering,
            max_attempts=max_attempts,
            time_to_live=None if time_to_live is None else timedelta(seconds=time_to_live),
        )
        shards = PerShardRateLimitingStrategy(records_per_second=50, hash_key=lambda entry: int(entry) % 3)
        writer = KeyedFakeWriter(
            fake,
            config,
            clock=clock,
            random=Random(seed).random,
            terminal=handlers[handler],
            strategy=All(aimd_strategy(config), shards) if sharded else None,
        )
        written: list[str] = []

        def everywhere() -> list[str]:
            kept = [entry for state in writer.snapshot_state() for entry, _ in state.entries]
            return sorted(fake.accepted + dead + letters.accepted + kept, key=int)

        async def write() -> None:
            for number in range(count):
                if number % 2 or not writer.write_nowait([str(number)]):
                    await writer.write(str(number))
                written.append(str(number))
            await writer.flush(end_of_input=Random(seed).random() < 0.7)
            assert everywhere() == written

        await writer.__aenter__()
        writing = asyncio.create_task(write())
        for _ in range(10_000):
            await clock.advance(0.3)
            if writing.done():
                break
        assert writing.done(), "the writer hangs"
        error = writing.exception()
        if error is not None:
            assert isinstance(error, ZeroDivisionError | RecordsRejectedError | OSError)
        await writer.close()
        if handler == "dead letters":
            # What the other sink took while this writer was closed is in both: it is not known to be there.
            assert sorted(set(everywhere()), key=int) == written
        else:
            assert everywhere() == written
            assert writer.metrics.dead_lettered == len(dead)
        assert writer.metrics.records_out == len(fake.accepted)
        if ordering is Ordering.STRICT:
            assert fake.accepted == sorted(fake.accepted, key=int)
        assert_shares_are_right(writer)

    asyncio.run(run())
