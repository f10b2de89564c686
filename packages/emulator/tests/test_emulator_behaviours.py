"""Both sides of what Kinesis leaves open, one after the other, and how to choose them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import h2.events
import msgspec
import pytest

from penstock.emulator import Behaviour
from penstock.emulator.__main__ import main
from penstock.emulator.testing import ManualClock, start_emulator_process

DAY = timedelta(hours=24)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
HALF_KEYS = str(2**127)

pytest_plugins = ["pytester"]


def behave(world: Any, **fields: Any) -> None:
    world.emulator.behaviour = Behaviour(**fields)


def split(world: Any) -> None:
    world.client.split_shard(StreamName="stream", ShardToSplit=world.first, NewStartingHashKey=HALF_KEYS)


def continuation(world: Any, subscriber: Any) -> str:
    """The continuation of an event without records."""
    world.clock.advance(5)
    event = subscriber.next()
    assert event["Records"] == []
    return str(event["ContinuationSequenceNumber"])


def keys(answer: Any) -> list[str]:
    return [record["PartitionKey"] for record in answer["Records"]]


def follow(world: Any, iterator: str, pages: int = 1000) -> list[Any]:
    """The pages from an iterator on, up to the end of the shard or until nothing is left."""
    found: list[Any] = []
    for _ in range(pages):
        found.append(world.client.get_records(ShardIterator=iterator))
        iterator = found[-1].get("NextShardIterator")
        if iterator is None or (found[-1]["MillisBehindLatest"] == 0 and not found[-1]["Records"]):
            break
    return found


# A sequence number that was trimmed


def test_a_trimmed_sequence_number_is_refused(world: Any) -> None:
    """The kind side: InvalidArgumentException for iterators and subscriptions, also without time in the numbers."""
    for timeless in (False, True):
        behave(world, sequence_numbers_without_time=timeless)
        name = f"stream-{timeless}"
        world.stream(name)
        (old,) = world.put("old", stream=name)
        world.clock.advance(DAY + 2 * SECOND)
        world.put("left", stream=name)
        refusal = world.refused(
            lambda name=name, old=old: world.iterator(
                kind="AFTER_SEQUENCE_NUMBER", stream=name, StartingSequenceNumber=old["SequenceNumber"]
            )
        )
        assert refusal[0] == "InvalidArgumentException"
        consumer = world.register(stream=name)
        refusal = world.refused(
            lambda consumer=consumer, old=old: world.subscribe(
                kind="AFTER_SEQUENCE_NUMBER", SequenceNumber=old["SequenceNumber"], consumer=consumer
            )
        )
        assert refusal[0] == "InvalidArgumentException"


@pytest.mark.parametrize("timeless", [False, True])
def test_a_trimmed_sequence_number_may_read_on_with_the_oldest_record(world: Any, timeless: bool) -> None:
    """The unkind side: the loss of the records between is not reported."""
    behave(world, read_on_from_trimmed=True, sequence_numbers_without_time=timeless)
    world.stream()
    old, _ = world.put("old", "lost")
    world.clock.advance(DAY + 2 * SECOND)
    world.put("left")
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        assert keys(world.read(kind=kind, StartingSequenceNumber=old["SequenceNumber"])) == ["left"]
        assert world.subscribe(kind=kind, SequenceNumber=old["SequenceNumber"]).data(1) == [b"left"]


# Records that expire ahead of a reader


def expire_ahead(world: Any) -> tuple[str, Any]:
    """An iterator and a subscription that stand before a record while it expires."""
    world.start(
        shard_iterator_lifetime=2 * DAY,
        subscription_lifetime=2 * DAY,
        subscription_bytes_per_second=1,
        behaviour=world.emulator.behaviour,
    ).stream()
    world.put("first", data=b"x" * 100_000)
    iterator = world.iterator()
    subscriber = world.subscribe()
    assert keys(subscriber.next()) == ["first"]
    iterator = world.client.get_records(ShardIterator=iterator)["NextShardIterator"]
    world.put("lost")
    world.clock.advance(DAY + 2 * SECOND)
    world.put("left")
    return iterator, subscriber


def test_records_that_expire_ahead_of_a_reader_are_skipped(world: Any) -> None:
    """Both profiles: iterator and subscription continue with what is left, without an error."""
    iterator, subscriber = expire_ahead(world)
    assert keys(world.client.get_records(ShardIterator=iterator)) == ["left"]
    world.clock.advance(5 * HOUR)
    event = subscriber.next()
    while not event["Records"]:
        event = subscriber.next()
    assert keys(event) == ["left"]


def test_a_reader_whose_next_records_expire_may_be_refused(world: Any) -> None:
    """The other side: ExpiredIteratorException, and the end of the subscription."""
    behave(world, refuse_expired_ahead=True)
    iterator, subscriber = expire_ahead(world)
    assert world.refused(lambda: world.client.get_records(ShardIterator=iterator))[0] == "ExpiredIteratorException"
    item = subscriber.next()
    while item != subscriber.END:
        assert item["Records"] == []
        item = subscriber.next()
    # New readers begin behind what expired.
    assert keys(world.read()) == ["left"]
    assert world.subscribe().data(1) == [b"left"]


# A continuation as the position of an iterator


def test_a_continuation_is_accepted_by_both_calls(world: Any) -> None:
    """The kind side."""
    world.stream()
    number = continuation(world, world.subscribe())
    world.put("a")
    assert keys(world.read(kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number)) == ["a"]
    assert world.subscribe(kind="AFTER_SEQUENCE_NUMBER", SequenceNumber=number).data(1) == [b"a"]


# Arrival times


def arrivals(world: Any) -> list[float]:
    world.stream()
    for _ in range(20):
        world.put("a")
        world.clock.advance(0.1)
    return [record["ApproximateArrivalTimestamp"].timestamp() for record in world.read()["Records"]]


def test_arrival_times_may_go_back_by_up_to_a_second(world: Any) -> None:
    """The unkind side; a position at a time that was shown holds the record, and the same seed shows the same times."""
    found: list[list[float]] = []
    for seed in (7, 7, 8):
        world.clock = ManualClock()
        world.start(behaviour=Behaviour(arrival_jitter=SECOND, seed=seed))
        start = world.clock.time()
        times = arrivals(world)
        found.append(times)
        assert times != sorted(times)
        for index, time in enumerate(times):
            assert start + index * 0.1 - 1.001 <= time <= start + index * 0.1 + 0.001
    assert found[0] == found[1] != found[2]
    world.put("last")
    last = world.read()["Records"][-1]
    answer = world.read(kind="AT_TIMESTAMP", Timestamp=last["ApproximateArrivalTimestamp"])
    assert keys(answer)[-1] == "last"


# Lists of shards


def listed(world: Any) -> list[tuple[str, bool]]:
    """The last digit of each shard in the list, and whether it looks open."""
    shards = world.client.list_shards(StreamName="stream")["Shards"]
    return [(shard["ShardId"][-1], "EndingSequenceNumber" not in shard["SequenceNumberRange"]) for shard in shards]


def test_a_reshard_is_listed_at_once(world: Any) -> None:
    """The kind side."""
    world.stream()
    split(world)
    assert listed(world) == [("0", False), ("1", True), ("2", True)]


def test_children_may_be_listed_seconds_after_a_reshard(world: Any) -> None:
    """The unkind side: until then the parent looks open, though it is not, and the children can be read."""
    behave(world, late_children=5 * SECOND)
    world.stream()
    split(world)
    assert listed(world) == [("0", True)]
    described = world.client.describe_stream(StreamName="stream")["StreamDescription"]["Shards"]
    assert [shard["ShardId"] for shard in described] == [world.first]
    assert world.shards(ShardFilter={"Type": "AT_LATEST"}) == [world.first]
    world.put("a")
    ended = world.read()
    assert ended.get("NextShardIterator") is None
    children = [child["ShardId"] for child in ended["ChildShards"]]
    assert [key for child in children for key in keys(world.read(child))] == ["a"]
    world.clock.advance(2)
    assert listed(world) == [("0", True)]
    world.clock.advance(3)
    assert listed(world) == [("0", False), ("1", True), ("2", True)]


@pytest.mark.parametrize("early", [False, True])
def test_a_closed_shard_leaves_the_list_with_the_retention_or_with_its_last_record(world: Any, early: bool) -> None:
    """Either way it can be read to its end until it was closed longer ago than the retention."""
    behave(world, unlist_expired_early=early)
    world.stream()
    world.put("a")
    world.clock.advance(HOUR)
    split(world)
    world.clock.advance(DAY - HOUR - SECOND)
    assert [name for name, _ in listed(world)] == ["0", "1", "2"]
    world.clock.advance(3)
    assert [name for name, _ in listed(world)] == (["1", "2"] if early else ["0", "1", "2"])
    assert len(world.read()["ChildShards"]) == 2
    world.clock.advance(HOUR)
    assert [name for name, _ in listed(world)] == ["1", "2"]
    assert world.refused(world.iterator)[0] == "ResourceNotFoundException"


# GetRecords beside SubscribeToShard


def test_get_records_may_be_behind_a_subscription_without_telling(world: Any) -> None:
    """The unkind side: MillisBehindLatest is 0 beside records, which a later call gives, once and in order."""
    world.start(enforce_limits=False, behaviour=Behaviour(get_records_lag=SECOND, seed=1)).stream()
    subscriber = world.subscribe()
    iterator = world.iterator()
    found: list[str] = []
    behind = 0
    for number in range(60):
        world.put(str(number))
        assert keys(subscriber.next()) == [str(number)]
        answer = world.client.get_records(ShardIterator=iterator)
        iterator = answer["NextShardIterator"]
        found += keys(answer)
        behind += len(found) <= number and answer["MillisBehindLatest"] == 0
        world.clock.advance(0.1)
    assert 0 < behind < 60
    world.clock.advance(1)
    found += keys(world.client.get_records(ShardIterator=iterator))
    assert found == [str(number) for number in range(60)]


def test_get_records_does_not_end_a_shard_before_its_last_record(world: Any) -> None:
    """However far it is behind, a closed shard ends only after all of its records."""
    world.start(enforce_limits=False, behaviour=Behaviour(get_records_lag=SECOND, seed=2)).stream()
    world.put("a", "b")
    split(world)
    for _ in range(20):
        pages = [world.read()]
        while (iterator := pages[-1].get("NextShardIterator")) is not None:
            pages.append(world.client.get_records(ShardIterator=iterator))
        assert [key for page in pages for key in keys(page)] == ["a", "b"]
        assert len(pages[-1]["ChildShards"]) == 2


# The end of a closed shard


def test_a_subscription_ends_a_shard_with_an_event(world: Any) -> None:
    """The kind side: no continuation, but the children."""
    world.stream()
    subscriber = world.subscribe()
    split(world)
    last = subscriber.next()
    assert "ContinuationSequenceNumber" not in last
    assert len(last["ChildShards"]) == 2
    assert subscriber.next() == subscriber.END


def test_a_subscription_may_end_with_a_shard_without_an_event(world: Any) -> None:
    """The unkind side, and so does each new one; GetRecords names the children."""
    behave(world, shard_end_without_event=True)
    world.stream()
    consumer = world.register()
    subscriber = world.subscribe(consumer=consumer)
    world.put("a")
    event = subscriber.next()
    assert keys(event) == ["a"]
    split(world)
    assert subscriber.next() == subscriber.END
    for _ in range(2):
        world.clock.advance(6)
        number = event["ContinuationSequenceNumber"]
        again = world.subscribe(kind="AFTER_SEQUENCE_NUMBER", SequenceNumber=number, consumer=consumer)
        assert again.next() == again.END
    answer = world.read(kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number)
    assert (len(answer["ChildShards"]), answer.get("NextShardIterator")) == (2, None)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_subscription_may_outlive_its_shard(world: Any, is_new: bool) -> None:
    """The unkind side: empty events with one continuation, at the tip, until its time is over; and each new one."""
    behave(world, subscriptions_outlive_shards=True)
    world.stream()
    consumer = world.register()
    subscriber = world.subscribe(consumer=consumer)
    world.put("a")
    event = subscriber.next()
    assert keys(event) == ["a"]
    split(world)
    number = event["ContinuationSequenceNumber"]
    if is_new:
        world.clock.advance(6)
        subscriber = world.subscribe(kind="AFTER_SEQUENCE_NUMBER", SequenceNumber=number, consumer=consumer)
        number = continuation(world, subscriber)
    for _ in range(3):
        world.clock.advance(5)
        event = subscriber.next()
        assert event["Records"] == event.get("ChildShards", [])
        assert (event["ContinuationSequenceNumber"], event["MillisBehindLatest"]) == (number, 0)
    world.clock.advance(300)
    answer = world.read(kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number)
    assert (len(answer["ChildShards"]), answer.get("NextShardIterator")) == (2, None)


# Answers without records


def test_answers_without_records_may_come_before_those_with_some(world: Any) -> None:
    """So many as are asked for: with the lag of an open shard, and with none on a closed one, also before its end."""
    world.start(enforce_limits=False).stream()
    world.put("a", "b")
    world.clock.advance(2)

    def found() -> list[tuple[int, bool, bool]]:
        pages: list[Any] = []
        iterator: str | None = world.iterator()
        while iterator is not None and len(pages) < 20:
            pages.append(world.client.get_records(ShardIterator=iterator, Limit=1))
            iterator = pages[-1].get("NextShardIterator")
        return [(len(one["Records"]), one["MillisBehindLatest"] > 0, "NextShardIterator" in one) for one in pages]

    empty, ahead = (0, True, True), (0, False, True)
    behave(world, empty_answers=2)
    assert found()[:8] == [empty, empty, (1, True, True), empty, empty, (1, False, True), ahead, ahead]
    split(world)
    assert found() == [ahead, ahead, (1, True, True), ahead, ahead, (1, False, True), ahead, ahead, (0, False, False)]


# Times in the future


@pytest.mark.parametrize("refused", [False, True])
def test_a_timestamp_a_little_in_the_future_is_accepted_or_refused(world: Any, refused: bool) -> None:
    """The kind side takes up to 5 s, the unkind side nothing after now; both refuse more."""
    behave(world, refuse_future_timestamps=refused)
    world.stream()
    consumer = world.register()
    now = world.clock.time()
    world.iterator(kind="AT_TIMESTAMP", Timestamp=now)
    calls: list[Callable[[], object]] = [
        lambda: world.iterator(kind="AT_TIMESTAMP", Timestamp=now + 2),
        lambda: world.subscribe(kind="AT_TIMESTAMP", Timestamp=now + 2, consumer=consumer),
    ]
    for call in calls:
        if refused:
            assert world.refused(call)[0] == "InvalidArgumentException"
        else:
            call()
    too_far = world.refused(lambda: world.iterator(kind="AT_TIMESTAMP", Timestamp=now + 6))
    assert too_far[0] == "InvalidArgumentException"


# Time in sequence numbers


def time_bits(number: str) -> int:
    return (int(number) >> 36) & (2**49 - 1)


def test_sequence_numbers_may_hold_no_time(world: Any) -> None:
    """The unkind side: they grow all the same, and an idle shard's continuations age as before."""
    behave(world, sequence_numbers_without_time=True)
    world.stream()
    numbers = []
    subscriber = world.subscribe()
    for _ in range(3):
        numbers.append(world.put("a")[0]["SequenceNumber"])
        subscriber.next()
        numbers.append(continuation(world, subscriber))
    assert [time_bits(number) for number in numbers] == [0] * 6
    assert sorted(numbers, key=int) == numbers
    assert len(numbers[0]) == 56
    world.clock.advance(DAY - 3 * SECOND)
    world.subscribe(kind="AFTER_SEQUENCE_NUMBER", SequenceNumber=numbers[-1])
    consumer = world.register()
    world.clock.advance(10)
    refusal = world.refused(
        lambda: world.subscribe(kind="AFTER_SEQUENCE_NUMBER", SequenceNumber=numbers[-1], consumer=consumer)
    )
    assert refusal[0] == "InvalidArgumentException"


# A stream deleted and made again


def made_again(world: Any) -> tuple[Any, ...]:
    """A number, an iterator, a consumer's ARN and the creation time of a stream, which is then made again at once."""
    world.stream()
    _, record = world.put("a", "b")
    iterator = world.iterator()
    consumer = world.register("reader")
    created = creation(world)
    world.client.delete_stream(StreamName="stream", EnforceConsumerDeletion=True)
    assert world.refused(lambda: world.client.get_records(ShardIterator=iterator))[0] == "ResourceNotFoundException"
    world.stream()
    return record["SequenceNumber"], iterator, consumer, created


def creation(world: Any) -> float:
    summary = world.client.describe_stream_summary(StreamName="stream")["StreamDescriptionSummary"]
    return float(summary["StreamCreationTimestamp"].timestamp())


@pytest.mark.parametrize("behaviour", [Behaviour.kind(), Behaviour.hostile(seed=5)], ids=["kind", "hostile"])
def test_nothing_of_a_deleted_stream_reads_its_successor(world: Any, behaviour: Behaviour) -> None:
    """On either side: another creation time even within a second, other consumer ARNs, and old iterators refused."""
    world.start(behaviour=behaviour)
    _, iterator, consumer, created = made_again(world)
    world.put("new")
    assert creation(world) > created
    assert world.refused(lambda: world.client.get_records(ShardIterator=iterator))[0] == "InvalidArgumentException"
    world.clock.advance(1)
    assert world.register("reader") != consumer
    for call in (
        lambda: world.subscribe(consumer=consumer),
        lambda: world.client.describe_stream_consumer(ConsumerARN=consumer),
    ):
        assert world.refused(call)[0] == "ResourceNotFoundException"


def test_numbers_that_start_over_are_told_apart_by_their_time(world: Any) -> None:
    """With time in them, the old ones are refused, unless they are to be accepted in their place of the order."""
    behave(world, sequence_numbers_start_over=True)
    world.stream()
    _, second = world.put("a", "b")
    world.client.delete_stream(StreamName="stream")
    world.clock.advance(10)
    world.stream()
    world.put("new", "newer")
    place = {"kind": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": second["SequenceNumber"]}
    assert world.refused(lambda: world.read(**place))[0] == "InvalidArgumentException"
    behave(world, accept_deleted_numbers=True)
    assert keys(world.read(**place)) == ["newer"]


# Pages without records


def across_a_gap(world: Any, **fields: Any) -> list[Any]:
    """The pages over a record, a gap of ten hours, two records."""
    world.start(enforce_limits=False, behaviour=Behaviour(**fields)).stream()
    world.put("a")
    world.clock.advance(10 * HOUR)
    world.put("b", "c")
    return follow(world, world.iterator())


def test_a_gap_may_take_many_pages_without_records(world: Any) -> None:
    """The unkind side: MillisBehindLatest is positive and falls, and the records behind the gap come."""
    pages = across_a_gap(world, page_span=HOUR)
    assert [key for page in pages for key in keys(page)] == ["a", "b", "c"]
    empty = [page for page in pages[:-1] if not page["Records"]]
    assert len(empty) >= 8
    behind = [page["MillisBehindLatest"] for page in empty]
    assert behind == sorted(behind, reverse=True)
    assert min(behind) > 0
    assert all(page["NextShardIterator"] for page in pages)


# All of it


def test_every_record_is_read_once_under_the_hostile_profile(world: Any) -> None:
    """Polling the lineage from TRIM_HORIZON by ChildShards gives each record once, in order for each shard."""
    world.start(enforce_limits=False, behaviour=Behaviour.hostile(seed=1)).stream()
    written = []
    for number in range(30):
        written.append(str(number))
        world.put(str(number))
        world.clock.advance(600 if number % 10 == 5 else 0.3)
        if number == 15:
            split(world)
    world.clock.advance(2)
    found: list[str] = []
    shards = [world.first]
    for shard in shards:
        iterator: str | None = world.iterator(shard)
        for _ in range(200):
            if iterator is None:
                break
            answer = world.client.get_records(ShardIterator=iterator)
            found += keys(answer)
            shards += [child["ShardId"] for child in answer.get("ChildShards", [])]
            iterator = answer.get("NextShardIterator")
    assert len(shards) == 3
    assert sorted(found, key=int) == written


# Choosing a behaviour


def ask(url: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(url.partition("://")[2], timeout=20)
    connection.request(method, f"/_emulator/{path}", json.dumps(body) if body is not None else None)
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


def test_the_behaviour_is_changed_over_http(world: Any) -> None:
    """POST takes a profile, single fields, or both; GET tells all of it; reset goes back to the options."""
    url = world.emulator.endpoint_url
    status, answer = ask(url, "GET", "behaviour")
    assert (status, answer["profile"], answer["seed"]) == (200, "kind", world.core.seed)
    assert answer["behaviour"] == Behaviour().as_dict()
    status, answer = ask(url, "POST", "behaviour", {"profile": "hostile", "seed": 9})
    assert (status, answer["profile"], answer["seed"]) == (200, "hostile", 9)
    assert world.emulator.behaviour == Behaviour.hostile(seed=9)
    status, answer = ask(url, "POST", "behaviour", {"page_span": None, "late_children": 2.5})
    assert (status, answer["profile"], answer["behaviour"]["late_children"]) == (200, "custom", 2.5)
    assert world.emulator.behaviour == replace(
        Behaviour.hostile(seed=9), page_span=None, late_children=timedelta(seconds=2.5)
    )
    ask(url, "POST", "reset")
    assert world.emulator.behaviour == Behaviour.kind()


@pytest.mark.parametrize(
    ("body", "option"),
    [
        ({"profile": "friendly"}, "profile"),
        ({"profile": 1}, "profile"),
        ({"page_span": 0}, "page_span"),
        ({"arrival_jitter": -1}, "arrival_jitter"),
        ({"arrival_jitter": None}, "arrival_jitter"),
        ({"late_children": 1e300}, "late_children"),
        ({"refuse_continuations": 1}, "refuse_continuations"),
        ({"seed": 1.5}, "seed"),
        ({"seed": True}, "seed"),
        ({"mood": True}, "mood"),
    ],
)
def test_a_behaviour_that_cannot_be_is_a_400(world: Any, body: Any, option: str) -> None:
    """The answer names the field, and nothing changes."""
    status, answer = ask(world.emulator.endpoint_url, "POST", "behaviour", body)
    assert (status, answer["option"]) == (400, option)
    assert world.emulator.behaviour == Behaviour.kind()


def test_the_hostile_profile_differs_from_the_kind_one_in_every_field_but_two() -> None:
    """Records that expire ahead of a reader are skipped in both, and a test gives the number of empty answers."""
    kind, hostile = Behaviour.kind().as_dict(), Behaviour.hostile(seed=1).as_dict()
    assert {name for name in kind if kind[name] == hostile[name]} == {"refuse_expired_ahead", "empty_answers"}
    assert Behaviour().changed(hostile) == Behaviour.hostile(seed=1)
    assert msgspec.json.decode(msgspec.json.encode(hostile)) == hostile


@pytest.mark.parametrize(("flags", "seed"), [((), 9), (("--seed", "5"), 5)])
def test_a_process_takes_the_seed_of_the_environment(
    flags: tuple[str, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside its profile; --seed is in its place."""
    monkeypatch.setenv("PENSTOCK_EMULATOR_PROFILE", "hostile")
    monkeypatch.setenv("PENSTOCK_EMULATOR_SEED", "9")
    with start_emulator_process("--no-tls", *flags) as emulator:
        _, answer = ask(emulator.endpoint_url, "GET", "behaviour")
    assert (answer["profile"], answer["seed"]) == ("hostile", seed)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("PENSTOCK_EMULATOR_SEED", "abc", "must be a whole number, not 'abc'"),
        ("PENSTOCK_EMULATOR_PROFILE", "hostil", "must be one of kind, hostile"),
    ],
)
def test_a_command_refuses_what_it_cannot_read_of_the_environment(
    variable: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the name of the variable."""

    async def start(*_: object, **__: object) -> None:
        pytest.fail("it started")

    monkeypatch.setattr("penstock.emulator.__main__._run", start)
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert f"penstock emulator: {variable}: {reason}" in capsys.readouterr().err


def test_pytest_takes_a_profile(pytester: pytest.Pytester) -> None:
    """The options reach the fixtures, the marker has the last word, and the header tells the seed."""
    pytester.makepyfile("""
        import pytest
        from penstock.emulator import Behaviour

        def test_option(kinesis_emulator, kinesis_behaviour):
            assert kinesis_emulator.behaviour == kinesis_behaviour == Behaviour.hostile(seed=12)

        @pytest.mark.kinesis_emulator(behaviour=Behaviour.kind(), tls=False)
        def test_marker(kinesis_emulator):
            assert kinesis_emulator.behaviour == Behaviour.kind()
    """)
    result = pytester.runpytest_subprocess("--kinesis-profile=hostile", "--kinesis-seed=12", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["kinesis: --kinesis-profile hostile --kinesis-seed 12"])


# Dates and the life of a subscription, which do not depend on the behaviour


def test_every_answer_has_the_date_of_the_emulators_clock(world: Any) -> None:
    """Whole seconds, rounded down, over HTTP/1.1 and HTTP/2, with bodies, errors and event streams."""
    world.stream()
    consumer = world.register()
    world.clock.advance(timedelta(days=400, seconds=0.9999999))
    now = int(world.clock.time())

    def seconds(date: str) -> float:
        assert date.endswith(" GMT")
        return parsedate_to_datetime(date).timestamp()

    subscribe = {"ConsumerARN": consumer, "ShardId": world.first, "StartingPosition": {"Type": "LATEST"}}
    requests = [("ListStreams", {}), ("DescribeStream", {"StreamName": "none"}), ("SubscribeToShard", subscribe)]
    for operation, body in requests:
        connection = http.client.HTTPConnection(world.emulator.endpoint_url.partition("://")[2], timeout=20)
        connection.request("POST", "/", json.dumps(body), {"X-Amz-Target": f"Kinesis_20131202.{operation}"})
        assert seconds(connection.getresponse().headers["Date"]) == now
        connection.close()
    connection = http.client.HTTPConnection(world.emulator.endpoint_url.partition("://")[2], timeout=20)
    connection.request("POST", "/", b"", {"Transfer-Encoding": "rubbish"})
    assert seconds(connection.getresponse().headers["Date"]) == now
    connection.close()
    world.clock.advance(10)
    http2 = world.http2()
    for operation, body in requests:
        stream_id = http2.call(operation, json.dumps(body).encode())
        headers = dict(http2.until(stream_id, h2.events.ResponseReceived).headers)
        assert seconds(headers["date"]) == now + 10
