"""Code that the user gives to a writer raises: the writer ends with that error, and no record is lost or miscounted."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from penstock.async_sink import (
    AIMDScalingStrategy,
    AsyncSinkConfig,
    CallbackHandler,
    CongestionControlRateLimitingStrategy,
    DropHandler,
    EntryFailure,
    FatalExceptionClassifier,
    LaneObservation,
    RequestInfo,
    ResultInfo,
    ScalingDecision,
    aimd_strategy,
)
from penstock.async_sink.errors import SinkError
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeRequest, FakeWriter, settle

MakeWriter = Callable[..., FakeWriter]


class UserError(Exception):
    """Raised by code of the user."""


class Raiser:
    """Raises once, at one call of one method."""

    def __init__(self, method: str, at_call: int = 1, error: BaseException | None = None) -> None:
        self.method, self.left, self.error = method, at_call, error or UserError(method)
        self.raised = False

    def __call__(self, method: str) -> None:
        if method == self.method:
            self.left -= 1
            if self.left == 0:
                self.raised = True
                raise self.error


class Strategy:
    """Lets everything pass, in two lanes, and calls a raiser in each of its methods."""

    def __init__(self, config: AsyncSinkConfig, may_raise: Raiser) -> None:
        self._inner, self.may_raise = aimd_strategy(config), may_raise
        self.lane_limiter = Lanes(may_raise)

    def register_in_flight_request(self, request: RequestInfo) -> None:
        self.may_raise("register_in_flight_request")
        self._inner.register_in_flight_request(request)

    def register_completed_request(self, result: ResultInfo) -> None:
        self._inner.register_completed_request(result)
        self.may_raise("register_completed_request")

    def should_block(self, request: RequestInfo) -> bool:
        self.may_raise("should_block")
        return self._inner.should_block(request)

    def get_max_batch_size(self) -> int:
        self.may_raise("get_max_batch_size")
        return self._inner.get_max_batch_size()

    def ask_again_after(self, request: RequestInfo) -> float | None:
        self.may_raise("ask_again_after")
        return None


class Lanes:
    """Lets two entries of a lane leave in a tenth of a second."""

    active = True

    def __init__(self, may_raise: Raiser) -> None:
        self.may_raise = may_raise
        self.taken: list[tuple[str, float]] = []

    def lane_of(self, entry: Any) -> str | None:
        self.may_raise("lane_of")
        return str(int(entry) % 2)

    def take(self, lane: str, size_in_bytes: int, now: float) -> bool:
        self.may_raise("take")
        self.taken = [(each, until) for each, until in self.taken if until > now]
        self.taken.append((lane, now + 0.1))
        return sum(each == lane for each, _ in self.taken) <= 2

    def give_back(self, lane: str, size_in_bytes: int) -> None:
        self.may_raise("give_back")

    def ready_at(self, lane: str, now: float) -> float:
        self.may_raise("ready_at")
        return now + 0.1

    def observe(self, observations: list[LaneObservation], submitted_at: float, now: float) -> None:
        self.may_raise("observe")


class Listener:
    """Keeps what the writer reports."""

    def __init__(self, may_raise: Raiser) -> None:
        self.may_raise = may_raise
        self.acknowledged_entries: list[int] = []
        self.ended_by: BaseException | None = None

    def acknowledged(self, entry_index: int, attempts: int) -> None:
        self.may_raise("acknowledged")
        self.acknowledged_entries.append(entry_index)

    def rejected(self, entry_index: int, attempts: int, failure: EntryFailure) -> None:
        self.may_raise("rejected")

    def abandoned(self, error: BaseException) -> None:
        self.ended_by = error
        self.may_raise("abandoned")


def kept_by(writer: FakeWriter) -> list[Any]:
    return [entry for state in writer.snapshot_state() for entry, _ in state.entries]


async def finish(writer: FakeWriter, clock: FakeClock) -> BaseException | None:
    """The error of a flush of everything, which must not hang."""
    flushing = asyncio.create_task(writer.flush(end_of_input=True))
    for _ in range(400):
        if flushing.done():
            return flushing.exception()
        await clock.advance(0.1)
    flushing.cancel()
    pytest.fail("flush hangs")


@pytest.fixture
def ten() -> list[str]:
    return list("0123456789")


METHODS = [
    "register_in_flight_request",
    "register_completed_request",
    "should_block",
    "get_max_batch_size",
    "lane_of",
    "take",
    "ready_at",
    "observe",
]


@pytest.mark.parametrize("at_call", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
async def test_a_strategy_that_raises_ends_the_writer_and_no_record_is_lost(
    make_writer: MakeWriter, clock: FakeClock, ten: list[str], method: str, at_call: int
) -> None:
    """Whatever the destination accepted is counted; everything else is in the snapshot; nothing stays in flight."""

    class Naming(FakeDestination):
        def accept(self, request: FakeRequest) -> None:
            self.accepted.extend(request.entries)
            request.handler.retry_failures([], lanes=[str(int(entry) % 2) for entry in request.entries])

    fake, raiser = Naming(), Raiser(method, at_call)
    config = AsyncSinkConfig(max_batch_size=5, max_buffered_requests=100)
    writer = FakeWriter(fake, config, clock=clock, strategy=Strategy(config, raiser))
    await writer.__aenter__()
    with suppress(UserError):
        for element in ten * 2:
            await writer.write(element)
    error = await finish(writer, clock)
    assert raiser.raised
    assert error is raiser.error
    assert writer.failure is raiser.error
    assert sorted(fake.accepted + kept_by(writer)) == sorted((ten * 2)[: writer.records_written])
    assert writer.metrics.records_out == len(fake.accepted)
    await settle()
    assert (writer.in_flight_requests, writer.in_flight_messages) == (0, 0)
    with pytest.raises(UserError):
        await writer.write("1")
    await writer.close()


async def test_a_scaling_strategy_or_a_decision_that_raises_ends_the_writer(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, ten: list[str]
) -> None:
    """The pieces of congestion control are the user's too."""

    class Decides:
        def decide(self, info: Any) -> ScalingDecision:
            raise UserError("decide")

    class Scales:
        def scale_up(self, current: int) -> int:
            return current if current == 10 else "many"  # type: ignore[return-value]  # the fault

        def scale_down(self, current: int) -> int:
            raise UserError("scale_down")

    scaling = AIMDScalingStrategy(rate_threshold=100)
    limits: dict[str, Any] = {"max_in_flight_requests": 5, "initial_limit": 10}
    for strategy in (
        CongestionControlRateLimitingStrategy(**limits, scaling_strategy=scaling, congestion_control=Decides()),
        CongestionControlRateLimitingStrategy(**limits, scaling_strategy=Scales()),
    ):
        fake = FakeDestination()
        fake.script = [fake.fail(1)]
        writer = make_writer(fake=fake, strategy=strategy)
        await writer.__aenter__()
        await writer.write_many(ten)
        assert isinstance(await finish(writer, clock), UserError)
        assert writer.metrics.records_out == len(fake.accepted) == 9
        assert kept_by(writer) == ["1"]
        await writer.close()


@pytest.mark.parametrize("size", [0, -1, None, 2.5, "many"])
async def test_a_batch_size_that_is_not_a_positive_number_ends_the_writer(
    make_writer: MakeWriter, clock: FakeClock, size: Any
) -> None:
    """It must not become 1 silently, or hang."""
    strategy: Any = Strategy(AsyncSinkConfig(), Raiser(""))
    strategy.get_max_batch_size = lambda: size
    writer = make_writer(strategy=strategy)
    await writer.__aenter__()
    with suppress(SinkError):
        await writer.write_many("0123456789")
    error = await finish(writer, clock)
    assert isinstance(error, SinkError)
    assert (getattr(error, "code", ""), getattr(error, "facts", {}).get("size")) == ("MAX_BATCH_SIZE", size)
    assert len(kept_by(writer)) == writer.records_written
    await writer.close()


@pytest.mark.parametrize("many", [False, True])
async def test_a_listener_that_raises_ends_the_writer_and_the_others_learn_of_their_entries(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, many: bool
) -> None:
    """What was accepted is counted, whatever the listener did; other listeners learn of their entries."""
    broken, whole = Listener(Raiser("acknowledged", 2)), Listener(Raiser(""))
    writer = make_writer(fake=fake)
    await writer.__aenter__()
    if many:
        await writer.write_many("01234", listener=broken)
        await writer.write_many("56789", listener=whole)
    else:
        for index in range(5):
            await writer.write(str(index), listener=broken, index=index)
        for index in range(5):
            await writer.write(str(index), listener=whole, index=index)
    assert await finish(writer, clock) is broken.may_raise.error
    assert writer.metrics.records_out == len(fake.accepted) == 10
    assert (broken.acknowledged_entries, whole.acknowledged_entries) == ([0, 2, 3, 4], [0, 1, 2, 3, 4])
    assert kept_by(writer) == []
    await writer.close()


async def test_an_entry_that_a_listener_did_not_take_back_stays_in_the_snapshot(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """The destination refused it and its listener raised: it exists nowhere else."""
    refused = [EntryFailure(index, "Malformed", throttled=False, final=True) for index in (0, 1)]
    fake.script = [lambda request: request.handler.retry_failures(refused)]
    listener = Listener(Raiser("rejected"))
    writer = make_writer(fake=fake)
    await writer.__aenter__()
    await writer.write_many("0123456789", listener=listener)
    assert await finish(writer, clock) is listener.may_raise.error
    assert kept_by(writer) == ["0"]
    await writer.close()


async def test_a_listener_that_raises_when_the_writer_ends_keeps_no_other_from_learning(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """The first error stays the writer's error."""
    fake.script = [fake.explode(OSError("down"))]
    broken, whole = Listener(Raiser("abandoned")), Listener(Raiser(""))
    writer = make_writer(fake=fake)
    await writer.__aenter__()
    await writer.write_many("01234", listener=broken)
    await writer.write_many("56789", listener=whole)
    error = await finish(writer, clock)
    assert isinstance(error, OSError)
    assert whole.ended_by is broken.ended_by is error
    await writer.close()


@pytest.mark.parametrize("part", ["matches", "wrap"])
async def test_a_classifier_that_raises_ends_the_writer_with_its_error(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, ten: list[str], part: str
) -> None:
    """The error of the destination is its context."""
    raiser = Raiser(part)

    def matches(error: BaseException) -> bool:
        raiser("matches")
        return True

    def wrap(error: BaseException) -> BaseException:
        raiser("wrap")
        return error

    fake.script = [fake.explode(OSError("down"))]
    writer = make_writer(fake=fake, classifier=FatalExceptionClassifier(matches, wrap))
    await writer.__aenter__()
    await writer.write_many(ten)
    error = await finish(writer, clock)
    assert error is raiser.error
    assert isinstance(error.__context__, OSError)
    assert kept_by(writer) == ten
    await writer.close()


async def test_a_handler_that_gives_back_what_cannot_be_awaited_ends_the_writer(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """The record stays in the snapshot."""
    handler: Any = CallbackHandler(lambda record: 5)  # type: ignore[arg-type,return-value]  # the fault
    fake.script = [fake.fail(3)]
    writer = make_writer(fake=fake, terminal=handler, max_attempts=1)
    await writer.__aenter__()
    await writer.write_many("0123456789")
    assert isinstance(await finish(writer, clock), TypeError)
    assert kept_by(writer) == ["3"]
    await writer.close()


@pytest.mark.parametrize("method", ["handler", "rejected"])
async def test_code_that_raises_about_expired_records_ends_the_writer(
    make_writer: MakeWriter, clock: FakeClock, method: str
) -> None:
    """Also if only the time led to the call of a handler or listener."""

    class Closed(Strategy):
        def should_block(self, request: RequestInfo) -> bool:
            return True

    raiser = Raiser(method)
    handler = CallbackHandler(lambda record: raiser("handler"))
    writer = make_writer(
        strategy=Closed(AsyncSinkConfig(), Raiser("")), terminal=handler, time_to_live=timedelta(seconds=1)
    )
    await writer.__aenter__()
    await writer.write_many("012", listener=Listener(raiser) if method == "rejected" else None)
    assert await finish(writer, clock) is raiser.error
    # The listener has learned of the other two.
    assert sorted(kept_by(writer)) == (["0"] if method == "rejected" else ["0", "1", "2"])
    await writer.close()


async def test_a_converter_that_raises_ends_the_writer_and_what_was_written_stays(
    make_writer: MakeWriter, fake: FakeDestination
) -> None:
    """The caller gets the error at once, and at each later call."""
    raiser = Raiser("converter", 3)

    def convert(element: str) -> str:
        raiser("converter")
        return element

    writer = make_writer(fake=fake, converter=convert)
    await writer.__aenter__()
    with pytest.raises(UserError):
        await writer.write_many("012")
    assert writer.failure is raiser.error
    assert kept_by(writer) == ["0", "1"]
    for call in (writer.write("3"), writer.flush(), writer.flush(end_of_input=True)):
        with pytest.raises(UserError):
            await call
    await writer.close()


async def test_code_of_the_user_that_is_cancelled_ends_the_writer(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """A CancelledError out of a listener does not cancel the caller."""
    listener = Listener(Raiser("acknowledged", 1, asyncio.CancelledError()))
    writer = make_writer(fake=fake)
    await writer.__aenter__()
    await writer.write_many("0123456789", listener=listener)
    error = await finish(writer, clock)
    assert isinstance(error, SinkError)
    assert isinstance(error.__cause__, asyncio.CancelledError)
    assert writer.metrics.records_out == 10
    await writer.close()


async def test_an_error_that_no_call_has_raised_is_raised_by_close(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """Once: by the first call after it."""
    listener = Listener(Raiser("acknowledged"))
    writer = make_writer(fake=fake)
    await writer.__aenter__()
    await writer.write_many("0123456789", listener=listener)
    await settle()
    with pytest.raises(UserError):
        await writer.close()
    await writer.close()
    assert fake.in_flight == 0


async def test_the_limit_of_a_strategy_that_raises_ends_the_writer(make_writer: MakeWriter) -> None:
    """The gauges are asked from other places than the writer's calls, and give what they can."""

    class Limited(Strategy):
        @property
        def limit(self) -> int | None:
            self.may_raise("limit")
            return 1

    writer = make_writer(strategy=Limited(AsyncSinkConfig(), Raiser("limit", 3)))
    await writer.__aenter__()
    while (limit := writer.gauges().limit) is not None:
        assert limit == 1
    with pytest.raises(UserError):
        await writer.write("0")
    await writer.close()


async def test_a_handler_that_cannot_be_asked_leaves_nothing_open() -> None:
    """Neither the destination nor the handler."""
    events: list[str] = []

    class Writer(FakeWriter):
        async def open_destination(self) -> None:
            events.append("open")

        async def close_destination(self) -> None:
            events.append("close")

    class Handler(DropHandler):
        async def open(self) -> None:
            events.append("handler open")

        async def close(self) -> None:
            events.append("handler close")

        @property
        def takes_many(self) -> bool:  # type: ignore[override]  # a property
            raise UserError("takes_many")

    with pytest.raises(UserError):
        await Writer(FakeDestination(), terminal=Handler()).__aenter__()
    assert sorted(events) == ["close", "handler close", "handler open", "open"]
