"""Whatever the destination does, no record is forgotten."""

import asyncio
from datetime import timedelta
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.async_sink import AsyncSinkConfig
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


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 150),
    batch=st.integers(1, 12),
    in_flight=st.integers(1, 4),
    fatal=st.booleans(),
)
def test_every_record_is_acknowledged_once_or_in_the_snapshot(
    seed: int, count: int, batch: int, in_flight: int, fatal: bool
) -> None:
    """Under random faults the accepted records and the snapshot are together what was written, each record once."""

    async def run() -> None:
        clock = FakeClock()
        fake = Fickle(Random(seed), fatal)
        config = AsyncSinkConfig(
            max_batch_size=batch,
            max_in_flight_requests=in_flight,
            max_buffered_requests=batch + 5,
            request_timeout=timedelta(seconds=1),
        )
        writer = FakeWriter(fake, config, clock=clock, random=Random(seed).random)
        written: list[str] = []

        async def write() -> None:
            for number in range(count):
                await writer.write(str(number))
                written.append(str(number))
            await writer.flush(end_of_input=Random(seed).random() < 0.7)

        await writer.__aenter__()
        writing = asyncio.create_task(write())
        for _ in range(5_000):
            await clock.advance(0.3)
            if writing.done():
                break
        assert writing.done(), "the writer hangs"
        if not fatal:
            writing.result()
        else:
            writing.exception()
        kept = [entry for state in writer.snapshot_state() for entry, _ in state.entries]
        assert sorted(fake.accepted + kept, key=int) == written
        assert writer.metrics.records_out == len(fake.accepted)
        await writer.close()

    asyncio.run(run())
