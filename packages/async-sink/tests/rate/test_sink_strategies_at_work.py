"""Strategies inside of a writer: what the destination sees of them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.async_sink import (
    AIMDScalingStrategy,
    All,
    AsyncSinkConfig,
    CongestionControlRateLimitingStrategy,
    GradientRateLimitingStrategy,
    KinesisStreamsSink,
    Ordering,
    RateLimitingStrategy,
    RequestInfo,
    ResultInfo,
    TokenBucketRateLimitingStrategy,
    aimd_strategy,
)
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeRequest, FakeWriter, settle
from penstock.aws.testing import emulator_options

MakeWriter = Callable[..., FakeWriter]


class Roomy(FakeDestination):
    """Takes so many messages at a time, refuses the others as too many, and answers after 20 ms."""

    def __init__(self, clock: FakeClock, room: int) -> None:
        super().__init__()
        self.clock, self.room, self.busy, self.sent, self.refused = clock, room, 0, 0, 0

    async def submit(self, entries: Any, handler: Any) -> None:
        request = FakeRequest(list(entries), handler)
        self.sent += len(entries)
        taken = min(len(entries), self.room - self.busy)
        self.busy += taken
        self.refused += len(entries) - taken
        answered = asyncio.Event()
        self.clock.call_at(self.clock.now() + 0.02, answered.set)
        await answered.wait()
        self.busy -= taken
        self.fail(*range(taken, len(entries)))(request) if taken < len(entries) else self.accept(request)


async def test_a_writer_settles_under_the_fixed_limit_of_its_destination(
    make_writer: MakeWriter, clock: FakeClock
) -> None:
    """A destination accepts 60 messages at a time: the limit stays near 60, little is refused, nothing is lost."""
    fake = Roomy(clock, 60)
    strategy = CongestionControlRateLimitingStrategy(
        max_in_flight_requests=50,
        initial_limit=500,
        scaling_strategy=AIMDScalingStrategy(increase_rate=1, decrease_factor=0.9, rate_threshold=500),
        decrease_once_per_round_trip=True,
    )
    options = {"max_in_flight_requests": 50, "max_buffered_requests": 2_000, "strategy": strategy}
    async with make_writer(fake=fake, **options) as writer:
        writing = asyncio.create_task(writer.write_many(str(number) for number in range(12_000)))
        while strategy.limit > 75:
            await clock.advance(0.02)
        settled, limits = (fake.sent, fake.refused), []
        while len(fake.accepted) < 11_000:
            await clock.advance(0.02)
            limits.append(strategy.limit)
        sent, refused = fake.sent - settled[0], fake.refused - settled[1]
        while not writing.done():
            await clock.advance(0.02)
        draining = asyncio.create_task(writer.flush(end_of_input=True))
        while not draining.done():
            await clock.advance(0.02)
    assert sorted(map(int, fake.accepted)) == list(range(12_000))
    assert len(limits) > 100
    assert all(40 <= limit <= 75 for limit in limits)
    assert refused / sent < 0.15


@pytest.mark.parametrize(
    ("rates", "per_second"),
    [
        ({"records_per_second": 50.0}, 50),
        ({"bytes_per_second": 100.0}, 50),
        ({"requests_per_second": 5.0}, 50),
        ({"records_per_second": 80.0, "bytes_per_second": 60.0, "requests_per_second": 100.0}, 30),
    ],
)
async def test_a_writer_keeps_to_a_fixed_rate(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, rates: dict[str, float], per_second: int
) -> None:
    """By records, bytes or requests: a second's worth at once, then that much each second, without another call."""
    strategy = TokenBucketRateLimitingStrategy(**rates)
    writer = make_writer(strategy=strategy, max_buffered_requests=1_000)
    await writer.__aenter__()
    await writer.write_many(["xx"] * 900)
    for second in range(5):
        await clock.advance(1.0)
        assert len(fake.accepted) == pytest.approx(per_second * (second + 2), abs=10)
    await writer.close()


class Keyed(str):
    """A record that is its own key."""

    __slots__ = ()

    @property
    def partition_key(self) -> str:
        return self


@pytest.mark.parametrize("ordering", list(Ordering))
async def test_a_request_holds_no_more_bytes_than_its_rate_has_in_a_second(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, ordering: Ordering
) -> None:
    """A larger request would leave a debt that blocks others; a larger entry is sent alone."""
    strategy = All(TokenBucketRateLimitingStrategy(bytes_per_second=100.0), aimd_strategy(AsyncSinkConfig()))
    writer = make_writer(strategy=strategy, ordering=ordering)
    await writer.__aenter__()
    await writer.write_many([Keyed("x" * 19 + str(number)) for number in range(7)])
    await writer.write_many([Keyed("y" * 300), Keyed("z" * 20)])
    await clock.advance(10.0)
    assert all(sum(map(len, batch)) <= 100 or batch == ["y" * 300] for batch in fake.batches)
    assert len(fake.accepted) == 9
    await writer.close()


async def test_waiting_for_the_strategys_rate_is_a_sign_of_life(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """A second after another, until the record leaves; a destination that does not answer gives none."""
    strategy = All(TokenBucketRateLimitingStrategy(bytes_per_second=10.0), aimd_strategy(AsyncSinkConfig()))
    writer = make_writer(strategy=strategy, max_in_flight_requests=1)
    async with writer:
        await writer.write_many(["x" * 1_000, "y"])
        for _ in range(90):
            before = writer.metrics.signs_of_life
            await clock.advance(1.0)
            assert writer.metrics.signs_of_life > before
        assert len(fake.accepted) == 1
        await clock.advance(20.0)
        assert len(fake.accepted) == 2
        fake.script = [fake.hold()]
        await writer.write("x")
        await clock.advance(5.0)
        before = writer.metrics.signs_of_life
        await writer.write("y")
        await clock.advance(5.0)
        assert writer.metrics.signs_of_life == before
        fake.requests[-1].answer.set()


async def test_a_gradient_finds_how_much_a_slowing_destination_takes(make_writer: MakeWriter, clock: FakeClock) -> None:
    """Answers slow down beyond 100 messages in flight: the limit stays in that order, though nothing is refused."""

    class Slowing(FakeDestination):
        async def submit(self, entries: Any, handler: Any) -> None:
            request = FakeRequest(list(entries), handler)
            self.in_flight += len(entries)
            answered = asyncio.Event()
            clock.call_at(clock.now() + 0.02 * max(1.0, self.in_flight / 100) ** 2, answered.set)
            await answered.wait()
            self.in_flight -= len(entries)
            self.accept(request)

    strategy = GradientRateLimitingStrategy(initial_limit=50, max_limit=5_000)
    fake = Slowing()
    options = {"max_in_flight_requests": 500, "max_buffered_requests": 5_000, "strategy": strategy}
    writer = make_writer(fake=fake, **options)
    await writer.__aenter__()
    writing = asyncio.create_task(writer.write_many(["x"] * 100_000))
    limits = []
    for _ in range(150):
        await clock.advance(0.02)
        limits.append(strategy.limit)
    assert all(70 <= limit <= 300 for limit in limits[50:])
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await writer.close()


def _answered(strategy: RateLimitingStrategy, now: float, throttled: int) -> None:
    size = strategy.get_max_batch_size()
    strategy.register_in_flight_request(RequestInfo(size, now=now))
    strategy.register_completed_request(ResultInfo(throttled, size, submitted_at=now, now=now + 0.1))


def test_a_throttled_record_costs_a_stream_its_share_and_a_success_adds_ten() -> None:
    """Gentler than x0.99: one refused record of 500 lowers the limit by a five-hundredth."""
    strategy: Any = KinesisStreamsSink(emulator_options("http://127.0.0.1:1"), "flights").create_writer().strategy
    for _ in range(3):
        _answered(strategy, 1.0, 0)
    assert strategy.limit == 4_000
    _answered(strategy, 2.0, 8)
    assert strategy.limit == 4_000 - 8
    _answered(strategy, 3.0, 0)
    assert strategy.limit == 4_000 - 8 + 10


class Shrinking:
    """Lets smaller requests through after the first answer."""

    most = 10

    def register_in_flight_request(self, request: RequestInfo) -> None: ...

    def register_completed_request(self, result: ResultInfo) -> None:
        self.most = 4

    def should_block(self, request: RequestInfo) -> bool:
        return False

    def get_max_batch_size(self) -> int:
        return self.most

    def ask_again_after(self, request: RequestInfo) -> float | None:
        return None


async def test_a_batch_is_full_when_the_strategy_lets_no_larger_one_through(
    make_writer: MakeWriter, fake: FakeDestination
) -> None:
    """Also if the size changed while the buffer was empty: entries do not wait for a batch that cannot be sent."""
    async with make_writer(strategy=Shrinking()) as writer:
        for number in range(14):
            await writer.write(f"{number}")
            await settle()
        assert [len(batch) for batch in fake.batches] == [10, 4]
