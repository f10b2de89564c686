"""Polling: the pace, the iterators and the end, on a scripted client and a clock that is moved."""

import asyncio
import base64
import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.aws import (
    UNREADABLE_ANSWER,
    AwsConnectionError,
    AwsOptions,
    AwsServiceError,
    AwsSession,
    BackoffPolicy,
    JsonClient,
    ServiceClock,
)
from penstock.efo_consumer import (
    PollingRecordPublisher,
    RecordPublisherConfig,
    Shard,
    ShardEvent,
    ShardListing,
    ShardPosition,
    ShardSign,
    StreamIdentity,
    read_once,
)
from penstock.efo_consumer._publish.list_shards import STILL_SECONDS, ShardListings
from penstock.efo_consumer._publish.pace import ReadPace
from penstock.efo_consumer._publish.polling import PollingTools
from penstock.efo_consumer._publish.retries import ReadRetries
from penstock.efo_consumer.errors import RecordPublisherFatalError, RecordPublisherRetriesError

SHARD = "shardId-000000000000"
CHILDREN = [
    {
        "ShardId": "shardId-000000000001",
        "ParentShards": [SHARD],
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
    }
]


def answer(*numbers: int, behind: int = 0, end: bool = False, **rest: Any) -> dict[str, Any]:
    records = [{"Data": "", "PartitionKey": "k", "SequenceNumber": str(number)} for number in numbers]
    body: dict[str, Any] = {"Records": records, "MillisBehindLatest": behind}
    return body | ({"ChildShards": CHILDREN} if end else {"NextShardIterator": f"after-{numbers}"}) | rest


def failure(code: str) -> AwsServiceError:
    return AwsServiceError(code=code, message="said so", status=400, operation="GetRecords")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class ScriptedClient:
    """Answers GetRecords by the script, and GetShardIterator with an iterator that is not seen elsewhere.

    ListShards gives one listing after the other, the last one again and again.
    """

    def __init__(self, *script: dict[str, Any] | Exception) -> None:
        self.clock = Clock()
        self.script = list(script)
        self.calls: list[tuple[str, dict[str, Any], float]] = []
        self.iterator_failures: list[Exception] = []
        self.list_failures: list[Exception] = []
        self.listings: list[list[dict[str, Any]]] = [[]]
        self.closed = False

    async def call_raw(self, operation: str, body: bytes) -> bytes:
        self.calls.append((operation, json.loads(body), round(self.clock.now, 3)))
        if operation == "GetShardIterator":
            if self.iterator_failures:
                raise self.iterator_failures.pop(0)
            return b'{"ShardIterator":"fresh"}'
        if operation == "ListShards":
            if self.list_failures:
                raise self.list_failures.pop(0)
            shards = self.listings.pop(0) if len(self.listings) > 1 else self.listings[0]
            return json.dumps({"Shards": shards}).encode()
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return json.dumps(step).encode()

    async def close(self) -> None:
        self.closed = True

    def named(self, operation: str) -> list[dict[str, Any]]:
        return [body for name, body, _ in self.calls if name == operation]

    def times(self, operation: str) -> list[float]:
        return [at for name, _, at in self.calls if name == operation]


COUNTED = BackoffPolicy(base=timedelta(seconds=1), maximum=timedelta(seconds=2), max_attempts=3)


def tools(clock: Clock, *, service_clock: ServiceClock | None = None, **changes: Any) -> PollingTools:
    quick = replace(COUNTED, max_attempts=None)
    config = RecordPublisherConfig(**{"get_records": quick, "get_shard_iterator": quick, **changes})
    return PollingTools(
        config=config,
        clock=clock,
        service_clock=service_clock or ServiceClock(),
        sleep=clock.sleep,
        random=lambda: 0.5,
    )


async def publish(
    client: ScriptedClient,
    shared: PollingTools,
    *,
    stream: StreamIdentity | None = None,
    position: ShardPosition | None = None,
    events: int | None = None,
) -> list[ShardEvent]:
    publisher = PollingRecordPublisher(cast(JsonClient, client), tools=shared)
    found: list[ShardEvent] = []
    begin = position or ShardPosition.trim_horizon()
    one = publisher.publish(stream or StreamIdentity("orders"), SHARD, begin)
    async with aclosing(one) as published:
        async for event in published:
            found.append(event)
            if len(found) == events:
                break
    return found


def numbers(events: list[ShardEvent]) -> list[int]:
    return [int(number) for event in events for number in event.records.column("sequenceNumber").to_pylist()]


async def test_reads_on_by_the_next_iterator_at_five_reads_a_second() -> None:
    """One iterator is enough, each answer brings the next one, and reads are 200 ms apart."""
    client = ScriptedClient(answer(1, 2), answer(3), answer(end=True))
    assert numbers(await publish(client, tools(client.clock))) == [1, 2, 3]
    assert len(client.named("GetShardIterator")) == 1
    assert [body["ShardIterator"] for body in client.named("GetRecords")] == ["fresh", "after-(1, 2)", "after-(3,)"]
    assert client.times("GetRecords") == [1000.0, 1000.2, 1000.4]


async def test_the_end_of_a_shard_names_the_children() -> None:
    """The last event has no continuation and names the children, also where it has no records."""
    client = ScriptedClient(answer(1), answer(end=True))
    events = await publish(client, tools(client.clock))
    assert [event.continuation for event in events] == ["1", None]
    assert [child.shard_id for child in events[-1].child_shards] == ["shardId-000000000001"]


async def test_an_idle_shard_keeps_its_continuation() -> None:
    """Empty answers are published with the last record's sequence number."""
    client = ScriptedClient(answer(5, behind=10), answer(), answer(end=True))
    events = await publish(client, tools(client.clock))
    assert [(event.records.num_rows, event.continuation) for event in events] == [(1, "5"), (0, "5"), (0, None)]
    assert events[0].millis_behind_latest == 10


async def test_the_lag_is_told_before_the_first_record() -> None:
    """Answers before the first record have no continuation and no children, and do not end the shard."""
    client = ScriptedClient(answer(behind=9000), answer(behind=500), answer(5), answer(end=True))
    events = await publish(client, tools(client.clock))
    told = [(event.continuation, event.child_shards, event.millis_behind_latest) for event in events[:2]]
    assert told == [(None, (), 9000), (None, (), 500)]
    assert [event.continuation for event in events[2:]] == ["5", None]
    assert events[-1].child_shards


async def test_an_expired_iterator_is_replaced() -> None:
    """A fresh iterator begins after the last record that was published."""
    client = ScriptedClient(answer(7), failure("ExpiredIteratorException"), answer(8, end=True))
    assert numbers(await publish(client, tools(client.clock))) == [7, 8]
    iterators = client.named("GetShardIterator")
    assert iterators[0]["ShardIteratorType"] == "TRIM_HORIZON"
    assert iterators[1]["ShardIteratorType"] == "AFTER_SEQUENCE_NUMBER"
    assert iterators[1]["StartingSequenceNumber"] == "7"


async def test_an_iterator_that_waited_too_long_is_not_tried() -> None:
    """A consumer that comes back after five minutes costs one GetShardIterator, no failed read."""
    client = ScriptedClient(answer(1), answer(2, end=True))
    publisher = PollingRecordPublisher(cast(JsonClient, client), tools=tools(client.clock))
    one = publisher.publish(StreamIdentity("orders"), SHARD, ShardPosition.trim_horizon())
    async with aclosing(one) as published:
        await anext(published)
        client.clock.now += 299
        assert numbers([event async for event in published]) == [2]
    assert len(client.named("GetShardIterator")) == 2


async def test_throttling_is_waited_out_by_all_readers_of_the_shard() -> None:
    """A throttled read is not a failed attempt; the whole process leaves the shard alone meanwhile."""
    throttled = [failure("ProvisionedThroughputExceededException") for _ in range(20)]
    client = ScriptedClient(*throttled, failure("InternalFailure"), answer(1, end=True))
    shared = tools(client.clock)
    assert numbers(await publish(client, shared)) == [1]
    assert min(later - earlier for earlier, later in pairwise(client.times("GetRecords"))) >= 0.5 - 1e-9
    assert shared.pace.reserve("orders", SHARD, client.clock.now) > 0


async def test_throttled_iterators_are_waited_out() -> None:
    """GetShardIterator backs off too, before every further call."""
    client = ScriptedClient(answer(1, end=True))
    client.iterator_failures = [failure("ProvisionedThroughputExceededException") for _ in range(5)]
    assert numbers(await publish(client, tools(client.clock))) == [1]
    assert min(later - earlier for earlier, later in pairwise(client.times("GetShardIterator"))) >= 0.5


@pytest.mark.parametrize(
    "code",
    ["InternalFailure", "ServiceUnavailableException", "ProvisionedThroughputExceededException", UNREADABLE_ANSWER],
)
async def test_failures_in_a_row_use_the_attempts_up(code: str) -> None:
    """If a number is given, as with Flink: throttling counts too, and each success resets the count."""
    client = ScriptedClient(failure(code), failure(code), answer(1), *[failure(code) for _ in range(3)])
    with pytest.raises(RecordPublisherRetriesError, match=r"get_records\.max_attempts") as caught:
        await publish(client, tools(client.clock, get_records=COUNTED))
    assert (caught.value.code, caught.value.attempts) == (code, 3)
    assert len(client.named("GetRecords")) == 6


async def test_iterators_have_a_count_of_their_own() -> None:
    """A number for GetShardIterator says nothing about GetRecords."""
    client = ScriptedClient(*[failure("InternalFailure") for _ in range(20)], answer(1, end=True))
    client.iterator_failures = [failure("InternalFailure") for _ in range(2)]
    assert numbers(await publish(client, tools(client.clock, get_shard_iterator=COUNTED))) == [1]
    client.iterator_failures = [failure("LimitExceededException") for _ in range(3)]
    with pytest.raises(RecordPublisherRetriesError, match=r"GetShardIterator: .*get_shard_iterator\.max_attempts"):
        await publish(client, tools(client.clock, get_shard_iterator=COUNTED))


@pytest.mark.parametrize("code", ["InternalFailure", "ProvisionedThroughputExceededException"])
async def test_failures_end_after_the_patience(code: str) -> None:
    """By time, however many attempts; each success resets it."""
    half, rest, whole = ([failure(code) for _ in range(count)] for count in (300, 300, 2000))
    client = ScriptedClient(*half, answer(1), *rest, answer(2), *whole)
    with pytest.raises(RecordPublisherRetriesError, match=r"for 60\d s, since 20") as caught:
        await publish(client, tools(client.clock))
    assert caught.value.attempts > 500


async def test_a_wait_that_nobody_else_tells_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Bounded reads have no reader that warns of shards: once per outage, after 30 s."""
    outages = [[failure("InternalFailure") for _ in range(count)] for count in (5, 200, 200)]
    answers = (outages[0], [answer(1)], outages[1], [answer(2)], outages[2], [answer(3, end=True)])
    client = ScriptedClient(*(one for each in answers for one in each))
    assert numbers(await publish(client, tools(client.clock))) == [1, 2, 3]
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert all("GetRecords has failed since" in one and "InternalFailure" in one for one in warnings)


async def test_a_patience_of_zero_is_for_ever() -> None:
    """Nothing that may pass ends the read."""
    client = ScriptedClient(*[failure("InternalFailure") for _ in range(5000)], answer(1, end=True))
    assert numbers(await publish(client, tools(client.clock, retry_patience=timedelta(0)))) == [1]


async def test_an_answer_that_tells_no_lag_is_no_proof_and_no_tip() -> None:
    """Neither is it caught up, nor does a read up to the tip end there; one that never learns it is an error."""
    unsaid = {"Records": [], "NextShardIterator": "next"}
    client = ScriptedClient(unsaid, answer(1, end=True))
    events = await publish(client, tools(client.clock))
    assert [(one.millis_behind_latest, one.caught_up_millis) for one in events[:1]] == [(None, None)]
    client = ScriptedClient(unsaid, unsaid, answer(1), answer())
    client.listings = [[OPEN]]
    once = read_once(cast(JsonClient, client), "orders", SHARD, ShardPosition.trim_horizon(), tools=tools(client.clock))
    assert numbers([event async for event in once]) == [1]
    client = ScriptedClient(*[unsaid] * 1000)
    once = read_once(cast(JsonClient, client), "orders", SHARD, ShardPosition.trim_horizon(), tools=tools(client.clock))
    with pytest.raises(RecordPublisherRetriesError, match="MillisBehindLatest"):
        assert [event async for event in once] == []


async def test_what_happens_between_two_answers_is_noted() -> None:
    """Failures, throttling and an end that does not show, each with its cause."""
    throttled, endless = failure("ProvisionedThroughputExceededException"), answer(1, NextShardIterator=None)
    client = ScriptedClient(failure("InternalFailure"), throttled, endless, answer(1, end=True))
    client.listings = [[OPEN]]
    noted: list[tuple[ShardSign, str]] = []
    publisher = PollingRecordPublisher(cast(JsonClient, client), tools=tools(client.clock))
    begin = ShardPosition.trim_horizon()
    events = publisher.publish(StreamIdentity("orders"), SHARD, begin, note=lambda *sign: noted.append(sign))
    assert numbers([event async for event in events]) == [1]
    assert [sign for sign, _ in noted] == [ShardSign.REFUSED, ShardSign.THROTTLED, ShardSign.STUCK]
    assert ["InternalFailure" in noted[0][1], "Provisioned" in noted[1][1], "no child" in noted[2][1]] == [True] * 3


async def test_a_broken_connection_is_retried() -> None:
    """No answer is a failure like others: the same iterator is used again."""
    broken = AwsConnectionError(operation="GetRecords", endpoint="there", reason="reset")
    client = ScriptedClient(broken, answer(1, end=True))
    client.iterator_failures = [failure("InternalFailure")]
    assert numbers(await publish(client, tools(client.clock))) == [1]
    assert len(client.named("GetShardIterator")) == 2


def listed(shard_id: str, first: int, last: int, *parents: str, is_open: bool = True) -> dict[str, Any]:
    sequence = {"StartingSequenceNumber": "1"} | ({} if is_open else {"EndingSequenceNumber": "9"})
    named = dict(zip(("ParentShardId", "AdjacentParentShardId"), parents, strict=False))
    keys = {"StartingHashKey": str(first), "EndingHashKey": str(last)}
    return {"ShardId": shard_id, "HashKeyRange": keys, "SequenceNumberRange": sequence, **named}


OPEN = listed(SHARD, 0, 9)
CLOSED = listed(SHARD, 0, 9, is_open=False)
LEFT, RIGHT = listed("shardId-000000000001", 0, 4, SHARD), listed("shardId-000000000002", 5, 9, SHARD)


async def test_no_iterator_and_no_children_is_not_the_end() -> None:
    """An answer without a next iterator and without children is asked again while the shard is listed as open."""
    client = ScriptedClient(answer(1, NextShardIterator=None), answer(1, end=True))
    client.listings = [[OPEN]]
    assert numbers(await publish(client, tools(client.clock))) == [1]


async def test_children_that_only_list_shards_names_end_the_shard() -> None:
    """A last answer without children brings its records and, from ListShards, the shard's children."""
    client = ScriptedClient(answer(1), answer(2, NextShardIterator=None))
    other = listed("shardId-000000000003", 0, 9, "shardId-000000000009")
    client.listings = [[CLOSED, other, LEFT, RIGHT]]
    events = await publish(client, tools(client.clock))
    assert numbers(events) == [1, 2]
    assert [event.continuation for event in events] == ["1", None]
    children = events[-1].child_shards
    assert [child.shard_id for child in children] == ["shardId-000000000001", "shardId-000000000002"]
    assert {child.parent_shard_ids for child in children} == {(SHARD,)}


async def test_a_merged_child_ends_both_of_its_parents() -> None:
    """The child of a merge names the shard as its second parent, and covers more than its hash keys."""
    client = ScriptedClient(answer(1, NextShardIterator=None))
    client.listings = [[CLOSED, listed("shardId-000000000002", 0, 19, "shardId-000000000001", SHARD)]]
    events = await publish(client, tools(client.clock))
    assert events[-1].child_shards[0].parent_shard_ids == ("shardId-000000000001", SHARD)


@pytest.mark.parametrize(
    "late",
    [[CLOSED], [OPEN, LEFT, RIGHT], [CLOSED, LEFT], [CLOSED, RIGHT], [LEFT, RIGHT]],
    ids=["no-children", "still-open", "first-child", "second-child", "parent-not-listed"],
)
async def test_children_that_are_listed_late_are_waited_for(late: list[dict[str, Any]]) -> None:
    """The shard ends when ListShards shows it closed with all of its children, far beyond the attempts."""
    endless = answer(1, NextShardIterator=None)
    client = ScriptedClient(*[endless] * 21)
    client.listings = [*[late] * 20, [CLOSED, LEFT, RIGHT]]
    events = await publish(client, tools(client.clock))
    assert numbers(events) == [1]
    assert len(events[-1].child_shards) == 2
    assert min(later - earlier for earlier, later in pairwise(client.times("ListShards"))) >= 0.5


async def test_children_that_are_never_listed_are_an_error() -> None:
    """After a minute the error says that the shard neither continued nor showed its children."""
    client = ScriptedClient(*[answer(1, NextShardIterator=None)] * 1000)
    client.listings = [[CLOSED, LEFT]]
    with pytest.raises(RecordPublisherRetriesError, match="ListShards has not shown") as caught:
        await publish(client, tools(client.clock))
    assert caught.value.code == "ShardEndError"
    assert 60 <= client.clock.now - 1000 < 63


async def test_list_shards_that_fails_is_borne_and_counts_for_nothing_else() -> None:
    """Without ListShards the children are not known: only the patience bounds its failures."""
    client = ScriptedClient(*[answer(1, NextShardIterator=None)] * 1000)
    client.list_failures = [failure("InternalFailure") for _ in range(100)]
    client.listings = [[CLOSED, LEFT, RIGHT]]
    events = await publish(client, tools(client.clock, get_records=COUNTED))
    assert len(events[-1].child_shards) == 2
    client.list_failures = [failure("InternalFailure") for _ in range(1000)]
    with pytest.raises(RecordPublisherRetriesError, match="ListShards: every attempt") as caught:
        await publish(client, tools(client.clock))
    assert caught.value.code == "InternalFailure"


async def test_an_iterator_begins_at_the_last_record_where_that_is_known() -> None:
    """A continuation is not a record's number and may be refused: the record before it is asked for instead."""
    for record, asked in (("7", "7"), ("", "9"), (None, "9")):
        client = ScriptedClient(answer(), answer(end=True))
        position = replace(ShardPosition.after("9"), record=record)
        events = await publish(client, tools(client.clock), position=position)
        assert client.named("GetShardIterator")[0]["StartingSequenceNumber"] == asked
        assert events[0].continuation == "9"


async def test_an_answer_at_the_tip_proves_what_arrived_before_the_call() -> None:
    """It tells the service's time before GetRecords less 2 s, by which polling and arrival times may be behind."""
    client = ScriptedClient(answer(behind=500), answer(), answer(5), answer(6, behind=9), answer(end=True))
    service_clock = ServiceClock(monotonic=client.clock, wall_clock=lambda: 0.0)
    service_clock.answered("Mon, 01 Jan 2024 00:00:00 GMT", client.clock.now)
    events = await publish(client, tools(client.clock, service_clock=service_clock))
    new_year = 1_704_067_200_000
    told = [None if one.caught_up_millis is None else one.caught_up_millis - new_year for one in events]
    assert told == [None, -1800, -1600, None, -1200]
    assert events[1].continuation is None


async def test_the_time_of_a_proof_is_that_of_the_call_that_succeeded() -> None:
    """Retries in between make the proof later, not earlier."""
    client = ScriptedClient(*[failure("InternalFailure")] * 2, answer(end=True))
    service_clock = ServiceClock(monotonic=client.clock, wall_clock=client.clock)
    events = await publish(client, tools(client.clock, service_clock=service_clock))
    assert events[0].caught_up_millis == int((client.times("GetRecords")[-1] - 2) * 1000)


async def test_a_fatal_error_is_not_retried() -> None:
    """A position that is refused is an error with advice, at the first answer."""
    client = ScriptedClient()
    client.iterator_failures = [failure("InvalidArgumentException")]
    with pytest.raises(RecordPublisherFatalError, match="retention") as caught:
        await publish(client, tools(client.clock))
    assert (caught.value.stream, caught.value.shard_id) == ("orders", SHARD)


async def test_a_stream_of_another_account_is_named_by_its_arn() -> None:
    """Where the ARN is known, it goes into every call, and the name into none."""
    client = ScriptedClient(answer(1, end=True))
    await publish(client, tools(client.clock), stream=StreamIdentity("orders", "arn:aws:kinesis:x:1:stream/orders"))
    assert {body["StreamARN"] for _, body, _ in client.calls} == {"arn:aws:kinesis:x:1:stream/orders"}
    assert not any("StreamName" in body for _, body, _ in client.calls)


async def test_closing_closes_the_client() -> None:
    """The publisher owns its client."""
    client = ScriptedClient()
    await PollingRecordPublisher(cast(JsonClient, client)).close()
    assert client.closed


async def replay(client: ScriptedClient) -> list[ShardEvent]:
    after = ShardPosition.after("3")
    events = read_once(cast(JsonClient, client), "orders", SHARD, after, tools=tools(client.clock))
    async with aclosing(events) as found:
        return [event async for event in found]


async def test_a_replay_reads_over_gaps_and_ends_at_the_tip() -> None:
    """Empty answers behind the tip are read over without being told; at the tip the replay ends."""
    client = ScriptedClient(answer(behind=500), answer(4, behind=300), answer(behind=100), answer(behind=0))
    client.listings = [[OPEN]]
    events = await replay(client)
    assert numbers(events) == [4]
    assert client.named("GetShardIterator")[0]["StartingSequenceNumber"] == "3"
    assert client.script == []


async def test_a_replay_ends_with_the_shard() -> None:
    """The end of the shard ends the replay, and says so."""
    events = await replay(ScriptedClient(answer(4, behind=9), answer(5, behind=1, end=True)))
    assert numbers(events) == [4, 5]
    assert [event.continuation for event in events] == ["4", None]


async def test_a_replay_up_to_the_tip_proves_that_too() -> None:
    """The answer at which a replay ends tells the time that it proves, as in following."""
    client = ScriptedClient(answer(4))
    client.listings = [[OPEN]]
    [event] = await replay(client)
    assert event.caught_up_millis is not None


async def test_answers_at_the_tip_do_not_end_a_closed_shard() -> None:
    """Only its children do, however many answers look like those at the tip of an open shard."""
    noted: list[tuple[ShardSign, str]] = []
    client = ScriptedClient(*[answer()] * 20, answer(4), *[answer()] * 20, answer(end=True))
    client.listings = [[CLOSED, LEFT, RIGHT]]
    events = read_once(
        cast(JsonClient, client),
        "orders",
        SHARD,
        ShardPosition.after("3"),
        tools=tools(client.clock),
        note=lambda sign, cause: noted.append((sign, cause)),
    )
    found = [event async for event in events]
    assert numbers(found) == [4]
    assert found[-1].child_shards
    assert {sign for sign, _ in noted} == {ShardSign.STUCK}
    # A shard does not open again.
    assert len(client.named("ListShards")) == 1


async def test_a_tip_is_an_end_once_the_shard_is_shown_open() -> None:
    """A shard that is not listed yet is asked for about once a second, and read on meanwhile."""
    client = ScriptedClient(answer(), answer(4), *[answer()] * 9)
    client.listings = [[], [OPEN]]
    assert numbers(await replay(client)) == [4]
    assert len(client.named("ListShards")) == 2
    assert client.times("ListShards")[1] - client.times("ListShards")[0] >= 1
    assert client.times("ListShards")[1] >= client.times("GetRecords")[-1]


@pytest.mark.parametrize("listing", [[CLOSED, LEFT, RIGHT], []], ids=["closed", "not-listed"])
async def test_a_shard_without_an_end_is_an_error_after_the_patience(
    listing: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """It names the shard and the position, and is not the end of what was read. A warning comes before it."""
    client = ScriptedClient(answer(4), *[answer()] * 10_000)
    client.listings = [listing]
    events = read_once(
        cast(JsonClient, client),
        "orders",
        SHARD,
        ShardPosition.after("3"),
        tools=tools(client.clock, retry_patience=timedelta(seconds=90)),
    )
    assert numbers([await anext(events)]) == [4]
    with pytest.raises(RecordPublisherRetriesError) as caught:
        await anext(events)
    assert (caught.value.code, caught.value.shard_id) == ("ShardEndMissing", SHARD)
    assert str(ShardPosition.after("4")) in str(caught.value)
    assert 90 <= client.clock.now - 1000 < 95
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == 1


@pytest.mark.parametrize(("is_open", "polls"), [(True, 1), (False, 3)])
async def test_what_the_caller_knows_of_the_shard_is_not_asked(is_open: bool, polls: int) -> None:
    """The tip of an open shard is the end then, and a closed shard is read to its children."""
    client = ScriptedClient(answer(), answer(), answer(end=True))
    events = read_once(
        cast(JsonClient, client),
        "orders",
        SHARD,
        ShardPosition.after("3"),
        tools=tools(client.clock),
        is_open=is_open,
    )
    assert numbers([event async for event in events]) == []
    assert len(client.named("GetRecords")) == polls
    assert client.named("ListShards") == []


async def test_reads_that_meet_at_their_tips_share_a_list() -> None:
    """A list that was asked for before an answer says nothing about the shard at that answer."""
    clock = Clock()
    asked: list[float] = []
    answers = asyncio.Event()

    async def list_shards(stream: str) -> list[Shard]:
        asked.append(clock.now)
        await answers.wait()
        return [Shard(SHARD)]

    listings = ShardListings(list_shards, clock=clock)
    first = asyncio.create_task(listings.since("orders", clock.now))
    await asyncio.sleep(0)
    clock.now += 1
    later = [asyncio.create_task(listings.since("orders", clock.now)) for _ in range(9)]
    await asyncio.sleep(0)
    answers.set()
    found = await asyncio.gather(first, *later)
    assert asked == [1000, 1001]
    assert [one.is_open(SHARD) for one in found] == [True] * 10
    assert found[0].is_open("another") is None
    assert ShardListing.of([Shard(SHARD), Shard("child", (SHARD,))]).is_open(SHARD) is False


async def test_a_list_that_fails_is_asked_for_again_later(caplog: pytest.LogCaptureFixture) -> None:
    """A shard that stands still does not wait for the list. A list that takes long is asked for less often."""
    clock = Clock()
    asked: list[float] = []
    seconds = 0.0

    async def list_shards(stream: str) -> list[Shard]:
        asked.append(clock.now)
        if len(asked) < 3:
            raise failure("LimitExceededException")
        clock.now += seconds
        return [Shard(SHARD)]

    listings = ShardListings(list_shards, clock=clock)

    async def look() -> ShardListing | None:
        found = listings.recent("orders")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return found

    for _ in range(2):
        assert await look() is None
        assert await look() is None
        clock.now += STILL_SECONDS
    assert len([one for one in caplog.messages if "LimitExceededException" in one]) == 1
    assert await look() is None
    assert (await look() or ShardListing.of([])).is_open(SHARD)
    seconds, began = 3.0, clock.now + STILL_SECONDS
    clock.now = began
    await look()
    clock.now = began + 59
    await look()
    clock.now = began + 60
    await look()
    assert asked == [1000, 1000 + STILL_SECONDS, 1000 + 2 * STILL_SECONDS, began, began + 60]
    await listings.aclose()


async def test_nothing_is_replayed_after_the_end() -> None:
    """A range that begins at SHARD_END is empty, and asks nothing."""
    client = ScriptedClient()
    events = read_once(cast(JsonClient, client), "orders", SHARD, ShardPosition.shard_end())
    assert [event async for event in events] == []
    assert client.calls == []


@given(st.lists(st.tuples(st.floats(0, 2), st.sampled_from("ab")), min_size=2, max_size=40))
def test_reads_of_a_shard_are_never_closer_than_the_interval(steps: list[tuple[float, str]]) -> None:
    """Two reads of one shard are always an interval apart; other shards do not matter."""
    pace = ReadPace(0.2)
    now = 0.0
    reads: dict[str, list[float]] = {"a": [], "b": []}
    for passed, shard in steps:
        now += passed
        reads[shard].append(now + pace.reserve("orders", shard, now))
    for times in reads.values():
        assert all(later - earlier >= 0.2 - 1e-9 for earlier, later in pairwise(times))


def test_the_pace_forgets_shards_that_are_not_read() -> None:
    """The memory of a process that reads many shards in turn does not grow."""
    pace = ReadPace(0.2)
    for index in range(1000):
        pace.reserve("orders", f"shard-{index}", now=index * 10.0)
    assert len(pace._shards) < 20


async def test_readers_of_a_process_share_the_reads_of_a_shard() -> None:
    """Two publishers that were built apart keep to 5 reads/s together, unless they read another account or region."""
    orders = f"orders-{uuid.uuid4().hex}"  # what is shared lives as long as the process
    session = AwsSession(AwsOptions(region="eu-west-1", endpoint_url="http://one.test"))
    same = AwsSession(AwsOptions(region="eu-west-1", endpoint_url="http://one.test"))
    other = AwsSession(AwsOptions(region="eu-west-2", endpoint_url="http://one.test"))
    config = RecordPublisherConfig()
    paces = [PollingTools.for_session(one, config).pace for one in (session, same, other)]
    assert paces[0] is paces[1]
    assert paces[0] is not paces[2]
    assert paces[0].reserve(orders, SHARD, 10.0) == 0.0
    assert paces[1].reserve(orders, SHARD, 10.0) == pytest.approx(0.2)
    assert paces[2].reserve(orders, SHARD, 10.0) == 0.0


async def test_an_interval_of_its_own_binds_only_its_reader() -> None:
    """A publisher that polls once a second leaves the shard's other reads to others."""
    client = ScriptedClient(answer(1), answer(2), answer(end=True))
    shared = tools(client.clock, get_records_interval=timedelta(seconds=1))
    await publish(client, shared)
    assert client.times("GetRecords") == [1000.0, 1001.0, 1002.0]
    assert shared.pace.reserve("orders", SHARD, 1002.3) == 0.0


async def test_reads_ask_for_what_the_shard_allows() -> None:
    """Once throttled, a read after 10 kB records asks for as many as 2 MiB/s allow; after small ones, for the most."""
    large, again, small = answer(1, 2), answer(3, 4), answer(5)
    for record in large["Records"] + again["Records"]:
        record["Data"] = base64.b64encode(bytes(10_000)).decode()
    throttled = failure("ProvisionedThroughputExceededException")
    client = ScriptedClient(large, throttled, again, small, answer(end=True))
    await publish(client, tools(client.clock))
    limits = [body["Limit"] for body in client.named("GetRecords")]
    in_200_ms, in_700_ms = (int(2 * 1024 * 1024 * seconds / 10_001) for seconds in (0.2, 0.7))
    assert limits == [10_000, 10_000, in_700_ms, in_200_ms, 10_000]


async def test_an_answer_has_as_many_records_as_there_is_room_for() -> None:
    """By the size of those before; a shard's first may be large. A shard at its tip wants no more than its share."""
    small = answer(1, 2, behind=1)
    for record in small["Records"]:
        record["Data"] = base64.b64encode(bytes(9_999)).decode()
    client = ScriptedClient(small, small, failure("InternalFailure"), answer(3), answer(4, end=True))
    wanted: list[int] = []
    kept = 0

    @contextmanager
    def room(nbytes: int) -> Iterator[int]:
        nonlocal kept
        wanted.append(nbytes)
        kept += 1
        try:
            yield (1 << 20, 100_000, 100_000, 100_000, 10 << 20)[len(wanted) - 1]
        finally:
            kept -= 1

    publisher = PollingRecordPublisher(cast(JsonClient, client), tools=tools(client.clock))
    events = publisher.publish(StreamIdentity("orders"), SHARD, ShardPosition.trim_horizon(), room=room)
    async for event in events:
        assert kept == 0, event
    limits = [body["Limit"] for body in client.named("GetRecords")]
    assert limits == [1, 10, 10, 10, 10_000]
    assert wanted[0] == int(0.2 * 2 * 1024 * 1024)
    assert wanted[-1] == 0
    assert min(wanted[:-1]) >= wanted[0]


@given(
    st.lists(st.tuples(st.floats(0.2, 20), st.integers(0, 10_000), st.integers(1, 1_048_576)), min_size=2, max_size=20)
)
def test_the_next_read_is_within_the_bytes_of_the_time_since_the_last(reads: list[tuple[float, int, int]]) -> None:
    """If records stay as they were, no read brings more than 2 MiB a second, 10 MiB or one record."""
    pace, now = ReadPace(), 0.0
    size = None
    pace.postpone("orders", SHARD, 200.0)
    for seconds, records, record_bytes in reads:
        now += seconds
        most = pace.max_records("orders", SHARD, now, 10_000)
        assert 1 <= most <= 10_000
        if size is not None and most > 1:
            assert most * size <= min(10 * 1024 * 1024, seconds * 2 * 1024 * 1024) + 1
        pace.note_read("orders", SHARD, now, records=records, nbytes=records * record_bytes)
        size = record_bytes if records else size


async def test_an_interval_longer_than_an_iterator_lives_is_waited_for_without_one() -> None:
    """Every read has an iterator that is fresh: an old one would be refused each time."""
    client = ScriptedClient(answer(1), answer(2), answer(end=True))
    config = RecordPublisherConfig(get_records_interval=timedelta(minutes=10))
    publisher = PollingRecordPublisher(
        cast(JsonClient, client), tools=PollingTools(config=config, clock=client.clock, sleep=client.clock.sleep)
    )
    begin = ShardPosition.trim_horizon()
    events = [event async for event in publisher.publish(StreamIdentity("s"), SHARD, begin)]
    assert [event.records.num_rows for event in events] == [1, 1, 0]
    ages = [
        read - asked
        for (first, _, asked), (second, _, read) in pairwise(client.calls)
        if (first, second) == ("GetShardIterator", "GetRecords")
    ]
    assert ages == [0.0, 0.0, 0.0]
    assert client.clock.now == 1000.0 + 1200


def test_a_failure_of_a_shard_that_is_watched_is_left_to_its_condition(caplog: pytest.LogCaptureFixture) -> None:
    """The watcher warns: otherwise one trouble would have two warnings."""
    for is_watched in (True, False):
        retries = ReadRetries(
            stream="s", shard_id=SHARD, patience_seconds=0, service_seconds=lambda: 0.0, is_watched=is_watched
        )
        for now in (0.0, 60.0, 120.0):
            retries.failed(failure("InternalFailure"), now=now, operation="GetRecords")
        warnings = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert len(warnings) == (not is_watched)
