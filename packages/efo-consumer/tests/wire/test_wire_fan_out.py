"""The life of a fan-out publisher, on a scripted transport and a clock that is moved."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.aws import AwsServiceError, BackoffPolicy, ServiceClock
from penstock.efo_consumer import (
    FanOutRecordPublisher,
    RecordPublisherConfig,
    ShardEvent,
    ShardPosition,
    ShardSign,
    StreamIdentity,
)
from penstock.efo_consumer._publish.fan_out import Readers
from penstock.efo_consumer._publish.retries import EXPIRED, TAKEN_OVER
from penstock.efo_consumer._wire.decode import decode_payload
from penstock.efo_consumer._wire.subscription import SubscribeRequest, SubscriptionEvent
from penstock.efo_consumer.errors import (
    EfoConsumerConfigError,
    EventStreamFrameError,
    RecordPublisherFatalError,
    RecordPublisherRetriesError,
    SubscriptionConnectionError,
    SubscriptionStuckError,
    SubscriptionTakenOverError,
)

ORDERS = StreamIdentity("orders")
ARN = "arn:aws:kinesis:eu-west-1:000000000000:stream/orders/consumer/billing:1"
CHILDREN = [
    {
        "ShardId": "shardId-000000000001",
        "ParentShards": ["shardId-000000000000"],
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
    }
]

END = None
SILENCE = "silence"
Step = SubscriptionEvent | Exception | str | None


def event(*sequence_numbers: int, continuation: int | None = None, **rest: object) -> SubscriptionEvent:
    records = [{"Data": "", "PartitionKey": "k", "SequenceNumber": str(number)} for number in sequence_numbers]
    body: dict[str, object] = {"Records": records, "MillisBehindLatest": 7, **rest}
    last = continuation if continuation is not None else (sequence_numbers or (None,))[-1]
    if last is not None and "ChildShards" not in rest:
        body["ContinuationSequenceNumber"] = str(last)
    return SubscriptionEvent(decode_payload(json.dumps(body).encode()), 100)


def shard_end() -> SubscriptionEvent:
    return event(ChildShards=CHILDREN)


def service_error(code: str) -> AwsServiceError:
    return AwsServiceError(code=code, message="said so", status=400, operation="SubscribeToShard")


class ScriptedSubscription:
    def __init__(self, steps: list[Step], answered_at: float | None = None) -> None:
        self._steps = steps
        self.answered_at = answered_at
        self.waits_since: float | None = None
        self.is_pending = False
        self.closed = False
        self.suspect = False
        self.bytes_received = 0

    async def receive(self) -> SubscriptionEvent | None:
        step = self._steps.pop(0)
        if step == SILENCE:
            await asyncio.Event().wait()
        if isinstance(step, Exception):
            raise step
        assert not isinstance(step, str)
        return step

    async def close(self, *, suspect: bool = False) -> None:
        self.closed = True
        self.suspect = suspect


@dataclass
class ScriptedTransport:
    """Answers each call with the next script: an error, or the steps of a subscription."""

    scripts: list[Exception | list[Step]]
    name: str = "http2"
    answered_at: float | None = None
    requests: list[SubscribeRequest] = field(default_factory=list)
    subscriptions: list[ScriptedSubscription] = field(default_factory=list)
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    before_answer: Callable[[], None] = lambda: None

    async def subscribe(self, request: SubscribeRequest) -> ScriptedSubscription:
        self.requests.append(request)
        self.before_answer()
        script = self.scripts.pop(0)
        if isinstance(script, Exception):
            raise script
        self.subscriptions.append(ScriptedSubscription(script, self.answered_at))
        self.accepted.set()
        return self.subscriptions[-1]

    async def close(self) -> None:
        pass

    @property
    def positions(self) -> list[str | None]:
        return [request.position.sequence_number for request in self.requests]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(round(seconds, 6))
        self.now += seconds


def config(**changes: object) -> RecordPublisherConfig:
    backoff = BackoffPolicy(base=timedelta(seconds=1), maximum=timedelta(seconds=2), max_attempts=None)
    return RecordPublisherConfig(**{"subscribe_to_shard": backoff, **changes})  # type: ignore[arg-type]


def publisher(
    transport: ScriptedTransport,
    clock: Clock,
    exporter: InMemorySpanExporter | None = None,
    *,
    service_clock: ServiceClock | None = None,
    **changes: object,
) -> FanOutRecordPublisher:
    provider = TracerProvider()
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    return FanOutRecordPublisher(
        transport,
        consumer_arns={"orders": ARN},
        config=config(**changes),
        service_clock=service_clock,
        tracer=provider.get_tracer("test"),
        clock=clock,
        sleep=clock.sleep,
        random=lambda: 0.5,
    )


def publish(publisher: FanOutRecordPublisher) -> AsyncGenerator[ShardEvent, None]:
    return publisher.publish(ORDERS, "shardId-000000000000", ShardPosition.trim_horizon())


async def read_all(publisher: FanOutRecordPublisher) -> list[int]:
    async with aclosing(publish(publisher)) as events:
        return [int(number) async for one in events for number in one.records.column("sequenceNumber").to_pylist()]


async def test_renews_at_the_end_of_a_subscription_from_the_last_continuation() -> None:
    """After five minutes the service ends the call, and the next one begins after the last event, records or not."""
    transport = ScriptedTransport([[event(1, 2), event(continuation=5), END], [event(6), shard_end()]])
    clock = Clock()

    def five_minutes_pass() -> None:
        clock.now += 300

    transport.before_answer = five_minutes_pass
    assert await read_all(publisher(transport, clock)) == [1, 2, 6]
    assert transport.positions == [None, "5"]
    assert all(one.closed for one in transport.subscriptions)


async def test_the_last_event_has_the_children_and_no_continuation() -> None:
    """The end of a shard is the event without continuation and with children; then the generator ends."""
    transport = ScriptedTransport([[event(1), shard_end()]])
    async with aclosing(publish(publisher(transport, Clock()))) as events:
        found = [one async for one in events]
    assert [one.continuation for one in found] == ["1", None]
    assert [len(one.child_shards) for one in found] == [0, 1]
    assert found[0].millis_behind_latest == 7


async def test_waits_out_the_rest_of_five_seconds() -> None:
    """A subscription that ends at once is renewed exactly 5 s after it was accepted, in one sleep."""
    transport = ScriptedTransport([[event(1), END], [shard_end()]])
    clock = Clock()
    await read_all(publisher(transport, clock))
    assert clock.sleeps == [5.0]


async def test_publishing_a_shard_anew_respects_the_five_seconds() -> None:
    """The 5-second rule holds for the consumer and shard, not for the generator."""
    transport = ScriptedTransport([[event(1), event(2)], [shard_end()]])
    clock = Clock()
    one = publisher(transport, clock)
    async with aclosing(publish(one)) as events:
        await anext(events)
    assert transport.subscriptions[0].closed
    clock.now += 2
    await read_all(one)
    assert clock.sleeps == [3.0]


@pytest.mark.parametrize(
    "failure",
    [
        EventStreamFrameError.of("FRAME_CHECKSUM", part="message", expected=1, actual=2),
        SubscriptionConnectionError("reset"),
        service_error("InternalFailureException"),
        service_error("KMSThrottlingException"),
        event(),
    ],
    ids=["crc", "reset", "internal-failure", "kms-throttling", "no-continuation-no-children"],
)
async def test_resumes_from_the_last_continuation(failure: Exception | SubscriptionEvent) -> None:
    """What breaks a subscription costs nothing: the next one continues after the last whole event."""
    transport = ScriptedTransport([[event(1, 2), failure], [event(3), shard_end()]])
    assert await read_all(publisher(transport, Clock())) == [1, 2, 3]
    assert transport.positions == [None, "2"]


async def test_silence_is_a_dead_connection() -> None:
    """A subscription that says nothing for longer than the limit is closed, and renewed."""
    transport = ScriptedTransport([[event(1), SILENCE], [event(2), shard_end()]])
    silence = timedelta(milliseconds=20)
    assert await read_all(publisher(transport, Clock(), subscription_silence=silence)) == [1, 2]
    assert [(one.closed, one.suspect) for one in transport.subscriptions] == [(True, True), (True, False)]


async def test_bytes_are_no_silence() -> None:
    """While bytes of a long event trickle in, the subscription is alive."""
    transport = ScriptedTransport([[SILENCE, event(1), shard_end()]])
    one = publisher(transport, Clock(), subscription_silence=timedelta(milliseconds=50))
    reading = asyncio.ensure_future(read_all(one))
    await transport.accepted.wait()
    transport.subscriptions[0].bytes_received += 1
    assert await reading == [1]
    assert len(transport.requests) == 1


NOTHING: list[tuple[Step, str]] = [
    (END, "expired"),
    (SubscriptionConnectionError("closed"), "connection_failed"),
    (event(), "no_continuation"),
    (SILENCE, "silent"),
]
QUICK = timedelta(milliseconds=20)


@pytest.mark.parametrize(("step", "outcome"), NOTHING, ids=[outcome for _, outcome in NOTHING])
async def test_subscriptions_that_bring_nothing_are_stuck(step: Step, outcome: str) -> None:
    """Three in a row that are accepted and bring no event end in an error that says so, however they end."""
    transport = ScriptedTransport([[event(1), END], [step], [step], [step]])
    with pytest.raises(SubscriptionStuckError) as caught:
        await read_all(publisher(transport, Clock(), subscription_silence=QUICK))
    error = caught.value
    assert (error.stream, error.shard_id, error.code) == ("orders", "shardId-000000000000", "SubscriptionStuck")
    assert (error.subscriptions, error.outcomes) == (3, (outcome,) * 3)
    assert all(one.closed for one in transport.subscriptions)


async def test_subscriptions_may_bring_nothing_each_in_its_own_way() -> None:
    """What ends a subscription without an event may differ from one to the next."""
    transport = ScriptedTransport([[step] for step, _ in NOTHING])
    exporter = InMemorySpanExporter()
    with pytest.raises(SubscriptionStuckError) as caught:
        await read_all(publisher(transport, Clock(), exporter, subscription_silence=QUICK))
    assert caught.value.outcomes == ("expired", "connection_failed", "no_continuation")
    outcomes = [dict(span.attributes or {})["outcome"] for span in exporter.get_finished_spans()]
    assert outcomes == ["expired", "connection_failed", "failed"]


async def test_an_event_shows_that_a_shard_is_not_stuck() -> None:
    """Subscriptions without an event count since the last event, records or not."""
    idle = event(continuation=5)
    transport = ScriptedTransport([[END], [END], [idle, END], [END], [END], [event(6), END], [END], [shard_end()]])
    assert await read_all(publisher(transport, Clock())) == [6]


async def test_refusals_do_not_make_a_shard_stuck() -> None:
    """Only accepted subscriptions count; refusals in between neither count nor reset the count."""
    refused = service_error("ResourceInUseException")
    five = [refused] * 5
    transport = ScriptedTransport([*five, [END], *five, [END], [event(1), shard_end()]])
    assert await read_all(publisher(transport, Clock())) == [1]
    transport = ScriptedTransport([[END], refused, [END], refused, [END]])
    with pytest.raises(SubscriptionStuckError):
        await read_all(publisher(transport, Clock()))


async def test_errors_of_the_service_do_not_make_a_shard_stuck() -> None:
    """What the service says inside a subscription keeps its own rules."""
    transport = ScriptedTransport([[service_error("InternalFailureException")] for _ in range(1000)])
    with pytest.raises(RecordPublisherRetriesError):
        await read_all(publisher(transport, Clock()))


def at_the_tip(*numbers: int) -> SubscriptionEvent:
    return event(*numbers, continuation=9, MillisBehindLatest=0)


async def proofs(one: FanOutRecordPublisher) -> list[int | None]:
    async with aclosing(publish(one)) as events:
        return [event.caught_up_millis async for event in events]


async def test_an_event_at_the_tip_proves_what_arrived_before_its_subscription() -> None:
    """It was made after that, however long it waited; less 1 s, by which arrival times may be too early."""
    transport = ScriptedTransport([[at_the_tip(1), event(2), at_the_tip(), shard_end()]], answered_at=1_704_067_200.0)
    assert await proofs(publisher(transport, Clock())) == [1_704_067_199_000, None, 1_704_067_199_000, None]


ACCEPTED = 1_704_067_200.0


class PacedSubscription(ScriptedSubscription):
    """Its events come after a wait of their own; some lie there before they are asked for."""

    def __init__(self, clock: "Clock", steps: list[tuple[float, bool, SubscriptionEvent]]) -> None:
        super().__init__([one for _, _, one in steps], ACCEPTED)
        self._clock = clock
        self._waits = [wait for wait, _, _ in steps]
        self._pending = [is_pending for _, is_pending, _ in steps]
        self.is_pending = self._pending[0]

    async def receive(self) -> SubscriptionEvent | None:
        self._clock.now += self._waits.pop(0)
        self._pending.pop(0)
        self.is_pending = bool(self._pending) and self._pending[0]
        return await super().receive()


class PacedTransport(ScriptedTransport):
    """Has one such subscription."""

    def __init__(self, subscription: PacedSubscription) -> None:
        super().__init__([], answered_at=ACCEPTED)
        self.subscriptions = [subscription]

    async def subscribe(self, request: SubscribeRequest) -> ScriptedSubscription:
        return self.subscriptions[0]


def idle(number: int, behind: int = 0) -> SubscriptionEvent:
    return event(continuation=number, MillisBehindLatest=behind)


async def read_times(clock: "Clock", steps: list[tuple[float, bool, SubscriptionEvent]]) -> list[float | None]:
    """Up to when each event shows that the shard was read, in seconds since the subscription was accepted."""
    transport = PacedTransport(PacedSubscription(clock, [*steps, (0.0, True, shard_end())]))
    service_clock = ServiceClock(monotonic=clock, wall_clock=lambda: 0.0)
    async with aclosing(publish(publisher(transport, clock, service_clock=service_clock))) as events:
        found = [one.read_millis async for one in events]
    return [None if millis is None else millis / 1000 - ACCEPTED for millis in found[:-1]]


async def test_an_idle_event_shows_when_it_was_made() -> None:
    """It was waited for, and was on its way for a second at most; behind the tip it is of that much earlier."""
    steps = [(5.0, False, idle(11)), (5.0, False, idle(12)), (5.0, False, idle(13, behind=3000))]
    assert await read_times(Clock(), steps) == [4.0, 9.0, 11.0]


async def test_an_event_that_may_have_waited_for_room_shows_no_later_time() -> None:
    """Neither one that lay there, nor one that came at once after it: the service may have held it back as long."""
    steps = [(5.0, False, idle(11)), (60.0, True, idle(12)), (0.5, False, idle(13)), (5.0, False, idle(14))]
    assert await read_times(Clock(), steps) == [4.0, 4.0, 4.0, 69.5]


async def test_events_that_come_fast_and_are_taken_fast_are_young() -> None:
    """Nothing can have waited for longer than a moment."""
    steps = [(0.5, False, idle(number)) for number in range(11, 16)]
    assert await read_times(Clock(), steps) == [0.0, 0.0, 0.0, 0.0, 0.0]
    steps = [(0.5, False, idle(number)) for number in range(11, 31)]
    assert (await read_times(Clock(), steps))[-1] == 7.5


async def test_records_show_no_time_and_events_without_records_do() -> None:
    """The time of a record is its own. Whether the shard of a subscription that stands still is open, others judge."""
    steps = [(5.0, False, at_the_tip(1)), (5.0, False, idle(9)), (5.0, False, idle(9)), (5.0, False, idle(10))]
    assert await read_times(Clock(), steps) == [None, 9.0, 14.0, 19.0]


async def test_the_answer_to_a_subscription_sets_the_clock() -> None:
    """The service's clock is bounded by the answer and by when it was asked for."""
    clock = Clock()
    service_clock = ServiceClock(monotonic=clock, wall_clock=lambda: 0.0)
    transport = ScriptedTransport([[shard_end()]], answered_at=1_704_067_200.0)

    def three_seconds_pass() -> None:
        clock.now += 3

    transport.before_answer = three_seconds_pass
    await read_all(publisher(transport, clock, service_clock=service_clock))
    assert (service_clock.earliest(), service_clock.latest()) == (1_704_067_200.0, 1_704_067_204.0)


async def test_without_a_date_the_time_before_the_call_is_taken() -> None:
    """An answer that tells no time proves what arrived before the subscription was asked for."""
    clock = Clock()
    transport = ScriptedTransport([[at_the_tip(1), shard_end()]])

    def three_seconds_pass() -> None:
        clock.now += 3

    transport.before_answer = three_seconds_pass
    service_clock = ServiceClock(monotonic=clock, wall_clock=clock)
    assert await proofs(publisher(transport, clock, service_clock=service_clock)) == [999_000, None]


async def test_waits_for_a_consumer_that_is_not_active() -> None:
    """A refusal as in use is waited out, for far longer than other failures."""
    refused: list[Exception | list[Step]] = [service_error("ResourceInUseException") for _ in range(20)]
    transport = ScriptedTransport([*refused, [event(1), shard_end()]])
    clock = Clock()
    assert await read_all(publisher(transport, clock)) == [1]
    assert clock.sleeps == [0.5, 0.75, *[1.0] * 18]


async def test_a_consumer_that_stays_in_use_is_an_error_in_the_end() -> None:
    """Patience with a consumer that is in use is long, not endless."""
    transport = ScriptedTransport([service_error("ResourceInUseException") for _ in range(1000)])
    clock = Clock()
    with pytest.raises(RecordPublisherRetriesError) as caught:
        await read_all(publisher(transport, clock))
    assert caught.value.code == "ResourceInUseException"
    assert 600 <= clock.now - 1000 < 610


async def test_a_take_over_is_not_fought_at_once() -> None:
    """After another reader took the subscription, the next call comes when it can be accepted."""
    transport = ScriptedTransport([[event(1), service_error("ResourceInUseException")], [event(2), shard_end()]])
    clock = Clock()
    assert await read_all(publisher(transport, clock)) == [1, 2]
    assert clock.sleeps == [5.75]


async def test_two_jobs_with_one_consumer_are_told_so() -> None:
    """A subscription that is taken again and again ends in an error that names the consumer."""
    taken: list[Exception | list[Step]] = [[event(1), service_error("ResourceInUseException")] for _ in range(6)]
    with pytest.raises(SubscriptionTakenOverError) as caught:
        await read_all(publisher(ScriptedTransport(taken), Clock()))
    assert caught.value.consumer_arn == ARN
    assert caught.value.times == 3


@pytest.mark.parametrize("code", ["ResourceNotFoundException", "AccessDeniedException", "KMSDisabledException"])
@pytest.mark.parametrize("inside", [True, False])
async def test_fatal_errors_are_not_retried(code: str, inside: bool) -> None:
    """What trying again cannot cure is raised at once, before or inside the stream, with stream, shard and code."""
    failure = service_error(code)
    transport = ScriptedTransport([[event(1), failure] if inside else failure])
    with pytest.raises(RecordPublisherFatalError) as caught:
        await read_all(publisher(transport, Clock()))
    assert (caught.value.stream, caught.value.shard_id, caught.value.code) == ("orders", "shardId-000000000000", code)
    assert caught.value.__cause__ is failure


def broken(count: int) -> list[SubscriptionConnectionError]:
    return [SubscriptionConnectionError("refused") for _ in range(count)]


async def test_the_patience_begins_with_the_first_failure_since_the_last_event() -> None:
    """However long events were left untaken before, and however many failures there were before the last one."""
    transport = ScriptedTransport([*broken(60), [event(1), *broken(1)], *broken(200)])
    clock = Clock()
    with pytest.raises(RecordPublisherRetriesError, match="retryPatience") as caught:
        await read_all(publisher(transport, clock, retry_patience=timedelta(seconds=70)))
    assert caught.value.attempts > 60
    assert len(transport.requests) > 120
    assert clock.sleeps[:3] == [0.5, 0.75, 1.0]


async def test_a_patience_of_zero_is_for_ever() -> None:
    """Then nothing that may pass ends reading."""
    transport = ScriptedTransport([*broken(2000), [event(1), shard_end()]])
    clock = Clock()
    assert await read_all(publisher(transport, clock, retry_patience=timedelta(0))) == [1]
    assert clock.now > 2500


COUNTED = BackoffPolicy(base=timedelta(seconds=1), maximum=timedelta(seconds=2), max_attempts=3)


async def test_attempts_count_as_with_flink_until_a_subscription_lived_to_its_end() -> None:
    """Where a number is given, an event in between gives none back, and neither does the patience."""
    one, two, three, four, five = broken(5)
    transport = ScriptedTransport([one, two, [event(1), END], three, [event(2), four], five])
    with pytest.raises(RecordPublisherRetriesError, match=r"subscribe_to_shard\.max_attempts") as caught:
        await read_all(publisher(transport, Clock(), subscribe_to_shard=COUNTED))
    assert caught.value.attempts == 3
    assert len(transport.requests) == 6


@pytest.mark.parametrize("code", ["LimitExceededException", "ResourceInUseException", "InternalFailureException"])
async def test_every_refusal_counts_as_with_flink(code: str) -> None:
    """Throttling and a consumer that is in use as well."""
    transport = ScriptedTransport([service_error(code)] * 3)
    with pytest.raises(RecordPublisherRetriesError) as caught:
        await read_all(publisher(transport, Clock(), subscribe_to_shard=COUNTED))
    assert (caught.value.attempts, caught.value.code) == (3, code)


async def test_what_happens_between_two_events_is_noted() -> None:
    """Refusals, ends of subscriptions and throttling, each with its cause."""
    (one,) = broken(1)
    throttled = service_error("LimitExceededException")
    transport = ScriptedTransport([one, [event(1), END], throttled, [event(2), *broken(1)], [shard_end()]])
    noted: list[tuple[ShardSign, str]] = []
    events = publisher(transport, Clock()).publish(
        ORDERS, "shardId-000000000000", ShardPosition.trim_horizon(), note=lambda *sign: noted.append(sign)
    )
    assert len([event async for event in events]) == 3
    ended = ShardSign.SUBSCRIPTION_ENDED
    assert [sign for sign, _ in noted] == [ShardSign.REFUSED, ended, ShardSign.THROTTLED, ended]
    assert [cause for _, cause in noted][::3] == ["refused", "refused"]
    assert noted[1][1] == "its five minutes are over"


async def test_time_outs_do_not_count_as_with_flink() -> None:
    """Flink retries those without end; here the patience is their end."""

    def late() -> SubscriptionConnectionError:
        error = SubscriptionConnectionError("no answer")
        error.__cause__ = TimeoutError()
        return error

    transport = ScriptedTransport([*[late() for _ in range(20)], [event(1), shard_end()]])
    assert await read_all(publisher(transport, Clock(), subscribe_to_shard=COUNTED)) == [1]
    transport = ScriptedTransport([late() for _ in range(1000)])
    with pytest.raises(RecordPublisherRetriesError, match="retryPatience"):
        await read_all(publisher(transport, Clock(), subscribe_to_shard=COUNTED))


async def test_a_defect_is_not_hidden() -> None:
    """An error that no service or network can cause is not retried, and not wrapped."""
    with pytest.raises(KeyError):
        await read_all(publisher(ScriptedTransport([KeyError("defect")]), Clock()))


async def test_closing_ends_the_subscription() -> None:
    """`aclose` in the middle closes the subscription."""
    transport = ScriptedTransport([[event(1), event(2)]])
    async with aclosing(publish(publisher(transport, Clock()))) as events:
        await anext(events)
        assert not transport.subscriptions[0].closed
    assert transport.subscriptions[0].closed


async def test_nothing_follows_the_end_of_a_shard() -> None:
    """Publishing from SHARD_END gives nothing and asks nothing."""
    transport = ScriptedTransport([])
    events = publisher(transport, Clock()).publish(ORDERS, "shardId-000000000000", ShardPosition.shard_end())
    assert [one async for one in events] == []


async def test_a_stream_without_a_consumer_names_the_option() -> None:
    """Without a consumer ARN the error names the option that is missing."""
    events = publisher(ScriptedTransport([]), Clock()).publish(
        StreamIdentity("other"), "shardId-000000000000", ShardPosition.trim_horizon()
    )
    with pytest.raises(EfoConsumerConfigError) as caught:
        await anext(events)
    assert caught.value.option == "efoConsumerArn.other"


async def test_each_subscription_is_a_span() -> None:
    """A span per call says stream, shard, transport, attempt and how it ended."""
    transport = ScriptedTransport(
        [SubscriptionConnectionError("refused"), [event(1, 2), END], [event(3), SILENCE], [shard_end()]]
    )
    exporter = InMemorySpanExporter()
    await read_all(publisher(transport, Clock(), exporter, subscription_silence=timedelta(milliseconds=20)))
    spans = exporter.get_finished_spans()
    assert {span.name for span in spans} == {"efo_consumer.subscribe"}
    found = [dict(span.attributes or {}) for span in spans]
    assert [one["outcome"] for one in found] == ["connection_failed", "expired", "silent", "shard_end"]
    assert [one["attempt"] for one in found] == [0, 1, 0, 1]
    assert [one["records"] for one in found] == [0, 2, 1, 0]
    assert {(one["stream"], one["shard"], one["transport"]) for one in found} == {
        ("orders", "shardId-000000000000", "http2")
    }


@dataclass
class Gated(ScriptedTransport):
    """Answers when it is allowed to."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def subscribe(self, request: SubscribeRequest) -> ScriptedSubscription:
        self.asked.set()
        await self.may_answer.wait()
        return await super().subscribe(request)


async def test_closing_while_a_call_is_under_way_ends_its_subscription() -> None:
    """A subscription that is accepted after that is closed at once: nothing else would end it."""
    transport = Gated([[event(1), event(2)]])
    one = publisher(transport, Clock())
    reading = asyncio.ensure_future(read_all(one))
    await transport.asked.wait()
    await one.close()
    transport.may_answer.set()
    with pytest.raises(RecordPublisherFatalError) as caught:
        await reading
    assert caught.value.code == "Closed"
    assert [subscription.closed for subscription in transport.subscriptions] == [True]


def test_a_shard_is_robbed_until_its_reader_is_left_alone() -> None:
    """Another reader takes a subscription back at once: one that lives for a minute shows that there is no other."""
    seconds = 0.0
    readers = Readers(lambda: seconds)
    readers.note_start("arn", "s0")
    assert not readers.is_robbed("arn", "s0")
    readers.note_end("arn", "s0", TAKEN_OVER)
    seconds = 100.0
    assert [readers.is_robbed(*key) for key in (("arn", "s0"), ("arn", "s1"), ("another", "s0"))] == [
        True,
        False,
        False,
    ]
    for lived, outcome in ((59.0, "failed"), (0.0, TAKEN_OVER)):
        readers.note_start("arn", "s0")
        seconds += lived
        assert readers.is_robbed("arn", "s0")
        readers.note_end("arn", "s0", outcome)
        assert readers.is_robbed("arn", "s0")
    readers.note_start("arn", "s0")
    seconds += 60.0
    assert not readers.is_robbed("arn", "s0")
    readers.note_end("arn", "s0", "failed")
    readers.note_start("arn", "s0")
    assert not readers.is_robbed("arn", "s0")
    readers.note_end("arn", "s0", TAKEN_OVER)
    readers.note_start("arn", "s0")
    readers.note_end("arn", "s0", EXPIRED)
    assert not readers.is_robbed("arn", "s0")
