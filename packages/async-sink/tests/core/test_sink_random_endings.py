"""However a writer ends, and however late a destination answers, each record is accounted for."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.async_sink import AsyncSinkConfig, BufferedRequestState, CallbackHandler, Ordering, TerminalRecord
from penstock.async_sink.errors import RecordsRejectedError
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeRequest, FakeWriter, settle


class Slow(FakeDestination):
    """Takes its time, often more than a request may take, and then does what it was asked all the same."""

    def __init__(self, random: Random, clock: FakeClock) -> None:
        super().__init__()
        self.random, self.clock = random, clock
        self.given_up: set[Any] = set()
        """Entries of cancelled requests: they may be there twice."""

    async def submit(self, entries: Sequence[Any], handler: Any) -> None:
        self.requests.append(request := FakeRequest(list(entries), handler))
        # As a service does that has the request: it is done, whoever hears of it.
        self.clock.call_at(self.clock.now() + self.random.random() * 1.5, lambda: self.decide(request))
        while not handler.answered:
            try:
                await request.answer.wait()
            except asyncio.CancelledError:
                self.given_up.update(entries)
                if self.random.random() < 0.5:
                    # A client that notices late that it was cancelled.
                    await asyncio.sleep(0)
                raise

    def decide(self, request: FakeRequest) -> None:
        dice, count = self.random.random(), len(request.entries)
        if dice < 0.1:
            self.fail()(request)
        elif dice < 0.15:
            request.handler.reject_request(code="Poison")
        elif dice < 0.5:
            failed = [index for index in range(count) if self.random.random() < 0.3]
            self.fail(*failed, throttled=dice < 0.3)(request) if failed else self.accept(request)
        else:
            self.accept(request)
        request.answer.set()


class KeyedFakeWriter(FakeWriter):
    def get_order_key(self, entry: Any) -> Any:
        return int(entry) % 4 or None


async def restored(states: Sequence[BufferedRequestState[Any]], config: AsyncSinkConfig) -> list[Any]:
    """What a successor writes of them."""
    heaven = FakeDestination()
    async with KeyedFakeWriter(heaven, config, initial_states=states):
        pass
    return heaven.accepted


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 120),
    batch=st.integers(1, 12),
    in_flight=st.integers(1, 4),
    ordering=st.sampled_from(Ordering),
    max_attempts=st.none() | st.integers(1, 4),
    fail_on_timeout=st.booleans(),
    handler=st.sampled_from(["none", "callback", "asynchronous"]),
    ends_after=st.none() | st.integers(0, 60),
    ending=st.sampled_from(["close", "cancel", "exception"]),
)
def test_however_a_writer_ends_each_record_is_somewhere(
    seed: int,
    count: int,
    batch: int,
    in_flight: int,
    ordering: Ordering,
    max_attempts: int | None,
    fail_on_timeout: bool,
    handler: str,
    ends_after: int | None,
    ending: str,
) -> None:
    """Accepted, dead-lettered or in the snapshot; twice only where an answer was not waited for; and never invented."""

    async def run() -> None:
        clock, dead = FakeClock(), list[Any]()
        fake = Slow(Random(seed), clock)

        async def asynchronous(record: TerminalRecord[Any]) -> None:
            taken = asyncio.Event()
            clock.call_at(clock.now() + 0.25, taken.set)
            await taken.wait()
            callback(record)

        def callback(record: TerminalRecord[Any]) -> None:
            # A cancelled request is not a failure of its records.
            assert record.error_code != "WriterClosed"
            dead.append(record.entry)

        handlers = {"none": None, "callback": callback, "asynchronous": asynchronous}
        chosen: Any = handlers[handler]
        config = AsyncSinkConfig(
            max_batch_size=batch,
            max_in_flight_requests=in_flight,
            max_buffered_requests=batch + 5,
            request_timeout=timedelta(seconds=1),
            ordering=ordering,
            max_attempts=max_attempts,
            fail_on_timeout=fail_on_timeout,
        )
        writer = KeyedFakeWriter(
            fake,
            config,
            clock=clock,
            random=Random(seed).random,
            terminal=None if chosen is None else CallbackHandler(chosen),
        )
        written: list[Any] = []
        stumbling = asyncio.Event()

        async def write() -> None:
            async with writer:
                for number in range(count):
                    await writer.write(str(number))
                    written.append(str(number))
                    if stumbling.is_set():
                        raise KeyError("the caller's own")

        writing = asyncio.create_task(write())
        for turn in range(5_000):
            if turn == ends_after:
                if ending == "cancel":
                    writing.cancel()
                elif ending == "close":
                    await writer.close()
                else:
                    stumbling.set()
            await clock.advance(0.1)
            if writing.done():
                break
        assert writing.done(), "the writer hangs"
        error = None if writing.cancelled() else writing.exception()
        assert not isinstance(error, AssertionError), error
        kept = [entry for state in writer.snapshot_state() for entry, _ in state.entries]
        # Late answers, to a writer that has ended.
        await clock.advance(5.0)
        await settle()
        assert kept == [entry for state in writer.snapshot_state() for entry, _ in state.entries]

        assert all(number == 1 for number in Counter(kept + dead).values())
        assert set(kept) | set(dead) | set(fake.accepted) == set(written)
        acknowledged = set(written) - set(kept) - set(dead)
        assert acknowledged <= set(fake.accepted)
        assert writer.metrics.records_out == len(acknowledged)
        doubled = {entry for entry, number in Counter(fake.accepted).items() if number > 1}
        assert doubled | (set(fake.accepted) & set(kept + dead)) <= fake.given_up
        if error is None and not writing.cancelled():
            assert kept == []
        assert sorted(await restored(writer.snapshot_state(), config), key=int) == sorted(kept, key=int)
        if (
            not isinstance(error, RecordsRejectedError | KeyError | None)
            and getattr(error, "code", "") != "REQUEST_TIMED_OUT"
        ):
            assert ending == "close", error

    asyncio.run(run())
