"""What FLIP-242 asks for where the writer or a strategy once did something else; the README lists the deviations."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.async_sink import (
    AIMDScalingStrategy,
    AsyncSinkConfig,
    CallbackHandler,
    CongestionControlConfig,
    CongestionControlInfo,
    CongestionControlRateLimitingStrategy,
    ProportionalScalingStrategy,
    RequestInfo,
    ResultInfo,
    ScalingDecision,
    ScalingTarget,
    TerminalReason,
    TerminalRecord,
    ThresholdCongestionControlStrategy,
)
from penstock.async_sink.errors import SinkOptionError
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeRequest, FakeWriter, settle

MakeWriter = Callable[..., FakeWriter]


def answer(strategy: CongestionControlRateLimitingStrategy, size: int, throttled: int = 0) -> int:
    """Let a request pass and be answered. Returns the limit that follows."""
    strategy.register_in_flight_request(RequestInfo(size))
    strategy.register_completed_request(ResultInfo(throttled, size))
    return strategy.limit


def test_the_drafts_own_example_starts_at_its_threshold() -> None:
    """Where 25,000 messages might be in flight and the threshold is 100, the limit is 100 from the start."""
    strategy = CongestionControlConfig(
        congestion_control_strategy=ThresholdCongestionControlStrategy(scale_down_failure_threshold=0.5),
        scaling_strategy=AIMDScalingStrategy(increase_rate=10, decrease_factor=0.5, rate_threshold=100),
        target=ScalingTarget.IN_FLIGHT_MESSAGES,
    )(AsyncSinkConfig())
    assert strategy.limit == 100
    assert answer(strategy, 100) == 100
    assert answer(strategy, 100, throttled=50) == 100
    assert answer(strategy, 100, throttled=51) == 50
    assert answer(strategy, 50) == 60


@given(
    scaling=st.one_of(
        st.builds(AIMDScalingStrategy, increase_rate=st.integers(1, 20), rate_threshold=st.integers(20, 300)),
        st.builds(ProportionalScalingStrategy, rate_threshold=st.integers(200, 300), floor=st.integers(1, 200)),
    ),
    initial=st.integers(1, 500),
    slow_start=st.none() | st.integers(1, 500),
    throttled=st.lists(st.booleans(), max_size=30),
)
def test_a_success_never_lowers_a_limit_and_a_throttle_never_raises_it(
    scaling: AIMDScalingStrategy | ProportionalScalingStrategy,
    initial: int,
    slow_start: int | None,
    throttled: list[bool],
) -> None:
    """Whatever it starts at, and however it grows: no limit passes the threshold either."""
    strategy = CongestionControlRateLimitingStrategy(
        max_in_flight_requests=10,
        initial_limit=initial,
        scaling_strategy=scaling,
        slow_start_threshold=slow_start,
    )
    limit = strategy.limit
    assert limit == min(initial, scaling.rate_threshold)
    for refused in throttled:
        before, limit = limit, answer(strategy, 10, throttled=5 if refused else 0)
        assert limit <= before if refused else limit >= before
        assert limit <= scaling.rate_threshold


class Halving:
    """Doubles and halves, and keeps what it was asked about."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def scale_up(self, current: int) -> int:
        self.asked.append(("up", current))
        return min(64, current * 2)

    def scale_down(self, current: int) -> int:
        self.asked.append(("down", current))
        return max(1, current // 2)


class EverySecond:
    """Scales with every second answer: down if it failed, else up."""

    def __init__(self) -> None:
        self.infos: list[CongestionControlInfo] = []

    def decide(self, info: CongestionControlInfo) -> ScalingDecision:
        self.infos.append(info)
        if len(self.infos) % 2:
            return ScalingDecision.KEEP
        return ScalingDecision.SCALE_UP if info.succeeded else ScalingDecision.SCALE_DOWN


@pytest.mark.parametrize("target", ScalingTarget)
async def test_custom_decisions_and_scaling_are_followed(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, target: ScalingTarget
) -> None:
    """The one says when and the other how much, for each target, with each answer that a writer gets.

    Each message has one byte.
    """
    when, how_much = EverySecond(), Halving()
    strategy = CongestionControlRateLimitingStrategy(
        max_in_flight_requests=64,
        initial_limit=16,
        scaling_strategy=how_much,
        congestion_control=when,
        target=target,
    )
    fake.script = [fake.accept, fake.fail(), fake.accept, fake.accept]
    async with make_writer(strategy=strategy, max_in_flight_requests=1) as writer:
        how_much.asked.clear()
        await writer.write_many("0123456789")
        await settle()
        assert strategy.limit == 16
        await writer.write_many("0123456789")
        await settle()
        assert strategy.limit == 8
        await clock.advance(1.0)
        assert strategy.limit == (16 if target is not ScalingTarget.IN_FLIGHT_REQUESTS else 8)
    expected = [("down", 16), ("up", 8)] if target is not ScalingTarget.IN_FLIGHT_REQUESTS else [("down", 16)]
    assert how_much.asked == expected
    sizes = [8, 2] if target is not ScalingTarget.IN_FLIGHT_REQUESTS else [10]
    answers = [(each.failed_messages, each.batch_size, each.succeeded) for each in when.infos]
    assert answers == [(0, 10, True), (10, 10, False), *((0, size, True) for size in sizes)]


async def test_bytes_in_flight_can_be_the_target(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """What is in flight and the batch together reach the limit, and do not pass it; batches are cut to it.

    A larger entry leaves when nothing else is in flight.
    """
    strategy = CongestionControlConfig(
        scaling_strategy=AIMDScalingStrategy(increase_rate=1, decrease_factor=0.5, rate_threshold=100),
        target=ScalingTarget.IN_FLIGHT_BYTES,
        initial_limit=40,
    )(AsyncSinkConfig())
    fake.script = [fake.hold(), fake.hold(fake.fail()), fake.hold()]
    async with make_writer(strategy=strategy) as writer:
        await writer.write_many([15, 15, 15, 15, 30])
        flushing = asyncio.create_task(writer.flush(end_of_input=True))
        await settle()
        assert fake.batches == [[15, 15]]
        fake.requests[0].answer.set()
        await settle()
        assert (fake.batches[1:], strategy.limit) == ([[15, 15]], 41)
        fake.requests[1].answer.set()
        await settle()
        # The limit is 21 now: what failed backs off, and the entry of 30 leaves alone.
        assert (fake.batches[2:], strategy.limit) == ([[30]], 21)
        fake.requests[2].answer.set()
        await clock.advance(0.1)
        await flushing
    assert sorted(fake.accepted) == [15, 15, 15, 15, 30]
    assert fake.batches[3:] == [[15], [15]]


def test_a_scaling_strategy_below_one_is_an_error() -> None:
    """A limit of 0 would hold back every request, and no answer would raise it."""

    class ToNothing(Halving):
        def scale_down(self, current: int) -> int:
            return 0

    strategy = CongestionControlRateLimitingStrategy(
        max_in_flight_requests=5,
        initial_limit=5,
        scaling_strategy=ToNothing(),
        target=ScalingTarget.IN_FLIGHT_REQUESTS,
    )
    with pytest.raises(SinkOptionError) as caught:
        answer(strategy, 5, throttled=1)
    assert caught.value.option == "scaling_strategy"


class FourMethods:
    """What FLIP-242 demands of a strategy, and nothing else: a gate that somebody opens and closes."""

    def __init__(self, most: int = 10, on_answer: "Callable[[FourMethods], None]" = lambda _: None) -> None:
        self.open, self.most, self._on_answer = True, most, on_answer
        self.asked: list[RequestInfo] = []
        self.sent: list[RequestInfo] = []
        self.answered: list[ResultInfo] = []

    def register_in_flight_request(self, request: RequestInfo) -> None:
        self.sent.append(request)

    def register_completed_request(self, result: ResultInfo) -> None:
        self.answered.append(result)
        self._on_answer(self)

    def should_block(self, request: RequestInfo) -> bool:
        self.asked.append(request)
        return not self.open or request.batch_size > self.most

    def get_max_batch_size(self) -> int:
        return self.most


async def test_the_four_methods_of_the_draft_are_enough(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """Each request is asked about before it leaves, registered as it leaves, and again with its answer."""
    strategy = FourMethods(most=4)
    fake.script = [fake.fail(1, 2)]
    async with make_writer(strategy=strategy) as writer:
        await writer.write_many("0123")
        await clock.advance(0.05)
        assert [len(batch) for batch in fake.batches] == [4, 2]
        assert [(each.batch_size, each.size_in_bytes) for each in strategy.sent] == [(4, 4), (2, 2)]
        assert [(each.failed_messages, each.batch_size) for each in strategy.answered] == [(2, 4), (0, 2)]
        assert strategy.answered[1].submitted_at == strategy.sent[1].now
        assert [each.batch_size for each in strategy.asked] == [4, 2]
        assert writer.strategy is strategy
        assert writer.gauges().limit is None
    assert sorted(fake.accepted) == list("0123")


@pytest.mark.parametrize("in_flight", [0, 1])
async def test_a_strategy_that_says_nothing_of_when_is_asked_again_and_again(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, in_flight: int
) -> None:
    """As the draft's loop does, with a pause in between: also while an answer that would do is long in coming."""
    strategy = FourMethods()
    fake.script = [fake.hold()] * in_flight
    async with make_writer(strategy=strategy) as writer:
        await writer.write_many("x" * 10 * in_flight)
        await settle()
        strategy.open = False
        await writer.write_many("0123456789")
        await clock.advance(1.0)
        assert len(fake.requests) == in_flight
        strategy.open = True
        await clock.advance(0.1)
        assert len(fake.requests) == in_flight + 1
        for request in fake.requests:
            request.answer.set()


class Spoilt(FakeDestination):
    """Refuses every request with a poisonous entry; keeps the time of each request."""

    def __init__(self, clock: FakeClock, *poison: str) -> None:
        super().__init__()
        self.poison, self._clock = set(poison), clock
        self.times: list[float] = []

    async def submit(self, entries: Any, handler: Any) -> None:
        self.requests.append(request := FakeRequest(list(entries), handler))
        self.times.append(self._clock.now())
        if self.poison.intersection(entries):
            handler.reject_request(code="ValidationException")
        else:
            self.accept(request)


async def test_the_parts_of_a_refused_request_ask_the_strategy(make_writer: MakeWriter, clock: FakeClock) -> None:
    """While it blocks none of them leaves, though nothing is in flight; then all that is not poison arrives."""

    def close_after_the_first(strategy: FourMethods) -> None:
        strategy.open = len(strategy.answered) > 1

    strategy, fake = FourMethods(on_answer=close_after_the_first), Spoilt(clock, "3")
    told: list[TerminalRecord[Any]] = []
    async with make_writer(fake=fake, strategy=strategy, terminal=CallbackHandler(told.append)) as writer:
        await writer.write_many("0123456789")
        await clock.advance(3.0)
        assert (len(fake.requests), writer.in_flight_requests, writer.buffered_entries) == (1, 0, 10)
        strategy.open = True
        await clock.advance(0.1)
        assert sorted(fake.accepted) == list("012456789")
    assert [(each.entry, each.reason) for each in told] == [("3", TerminalReason.POISON)]


@pytest.mark.parametrize(("entry", "batch"), [("x", 500), (1024 * 1024, 5)])
async def test_as_many_requests_fly_as_are_configured(clock: FakeClock, entry: str | int, batch: int) -> None:
    """With the defaults 50, full by number or by bytes; beside them waits what the buffer holds, and no more."""
    fake = FakeDestination()
    fake.script = [fake.hold() for _ in range(50)]
    config = AsyncSinkConfig()
    async with FakeWriter(fake, config, clock=clock) as writer:
        writing = asyncio.create_task(writer.write_many([entry] * 40_000))
        await settle(200)
        assert writer.in_flight_requests == fake.in_flight == 50
        assert {len(sent) for sent in fake.batches} == {batch}
        gauges = writer.gauges()
        assert gauges.buffer_records == (10_000 if batch == 500 else 128)
        held_bytes = gauges.buffer_bytes + sum(sum(map(writer.get_size_in_bytes, sent)) for sent in fake.batches)
        most_bytes = config.max_buffered_bytes + config.max_in_flight_requests * config.max_batch_size_in_bytes
        assert held_bytes <= most_bytes
        assert not writing.done()
        for request in fake.requests:
            request.answer.set()
        await writing
    assert len(fake.accepted) == 40_000
