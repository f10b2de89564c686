"""Orders of records, and what overtakes what."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from penstock.async_sink import CallbackHandler, LaneObservation, Ordering, RequestInfo, ResultInfo
from penstock.async_sink.errors import BufferFullError, RecordError
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeRequest, FakeWriter, settle

MakeWriter = Callable[..., FakeWriter]


class KeyedWriter(FakeWriter):
    """Entries are (key, number)."""

    def get_order_key(self, entry: Any) -> Any:
        return entry[0]


class AtomicWriter(FakeWriter):
    requests_are_atomic = True


class Unreliable(FakeDestination):
    """Answers late, in any order, and refuses 30 % of the entries at random; a request may be refused whole."""

    def __init__(self, random: Random, clock: FakeClock, *, whole: bool = False) -> None:
        super().__init__()
        self.random, self.clock, self.whole = random, clock, whole

    async def submit(self, entries: Any, handler: Any) -> None:
        self.requests.append(request := FakeRequest(list(entries), handler))
        answered = asyncio.Event()
        self.clock.call_at(self.clock.now() + self.random.random() * 0.05, answered.set)
        await answered.wait()
        if self.whole:
            failed = list(range(len(entries))) if self.random.random() < 0.3 else []
        else:
            failed = [index for index in range(len(entries)) if self.random.random() < 0.3]
        self.fail(*failed)(request) if failed else self.accept(request)


async def run(writer: FakeWriter, entries: Sequence[Any], clock: FakeClock) -> None:
    async def write() -> None:
        async with writer:
            await writer.write_many(entries)

    writing = asyncio.create_task(write())
    for _ in range(20_000):
        await clock.advance(0.05)
        if writing.done():
            break
    await asyncio.wait_for(writing, 60)


def keyed(make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, **options: Any) -> FakeWriter:
    return KeyedWriter(fake, make_writer(**options).config, clock=clock, random=Random(1).random)


@pytest.mark.parametrize("seed", range(5))
async def test_the_order_of_each_key_is_kept_under_random_partial_failures(
    make_writer: MakeWriter, clock: FakeClock, seed: int
) -> None:
    """30 % of the entries fail, answers come in any order: each key's records arrive in the order of writing."""
    fake, random = Unreliable(Random(seed), clock), Random(seed)
    entries = [(random.randrange(12), number) for number in range(400)]
    await run(keyed(make_writer, fake, clock, ordering=Ordering.PER_KEY), entries, clock)
    by_key = defaultdict(list)
    for key, number in fake.accepted:
        by_key[key].append(number)
    assert sorted(fake.accepted, key=lambda entry: entry[1]) == entries
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert fake.accepted != entries, "keys should overtake each other"
    assert max(len(batch) for batch in fake.batches) > 1


async def test_one_record_of_a_key_is_in_flight_at_a_time(make_writer: MakeWriter, clock: FakeClock) -> None:
    """Not even one request holds two: a destination may accept the second and refuse the first."""
    fake = Unreliable(Random(7), clock)
    await run(keyed(make_writer, fake, clock, ordering=Ordering.PER_KEY), [("a", n) for n in range(30)], clock)
    assert {len(batch) for batch in fake.batches} == {1}
    assert [number for _, number in fake.accepted] == list(range(30))


async def test_a_strict_order_is_kept_by_single_entries_where_requests_can_fail_in_part(
    make_writer: MakeWriter, clock: FakeClock
) -> None:
    """One entry is in flight, and is sent until it is accepted."""
    fake = Unreliable(Random(3), clock)
    await run(make_writer(fake=fake, ordering=Ordering.STRICT), [str(number) for number in range(60)], clock)
    assert fake.accepted == [str(number) for number in range(60)]


@pytest.mark.parametrize("seed", range(5))
async def test_a_strict_order_is_kept_while_requests_are_halved(
    make_writer: MakeWriter, clock: FakeClock, seed: int
) -> None:
    """A half that fails is not overtaken by the other one; only the poisonous records are missing."""

    class Spoilt(Unreliable):
        async def submit(self, entries: Any, handler: Any) -> None:
            if any(entry.endswith("3") for entry in entries) and self.random.random() < 0.8:
                self.requests.append(FakeRequest(list(entries), handler))
                handler.reject_request(code="Poison")
            else:
                await super().submit(entries, handler)

    fake, dropped = Spoilt(Random(seed), clock, whole=True), list[str]()
    config = make_writer(ordering=Ordering.STRICT).config
    handler = CallbackHandler(lambda record: dropped.append(record.entry))
    await run(AtomicWriter(fake, config, clock=clock, terminal=handler), [str(number) for number in range(60)], clock)
    assert fake.accepted == sorted(fake.accepted, key=int)
    assert dropped
    assert sorted(fake.accepted + dropped, key=int) == [str(number) for number in range(60)]


async def test_without_an_order_what_backs_off_does_not_hold_up_what_is_newer(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """A failed request waits for its time alone."""
    fake.script = [fake.fail()]
    async with make_writer() as writer:
        await writer.write_many("0123456789")
        await settle()
        await writer.write_many("abcdefghij")
        await settle()
        assert fake.accepted == list("abcdefghij")
        await clock.advance(0.05)
        assert fake.accepted[10:] == list("0123456789")


class Lanes:
    """A strategy whose lanes are the entries' first letters; closed lanes have no room."""

    active = True

    def __init__(self) -> None:
        self.closed: set[str] = set()
        self.taken: list[str] = []
        self.seen: list[LaneObservation] = []
        self.blocks = False

    @property
    def lane_limiter(self) -> "Lanes":
        return self

    def lane_of(self, entry: str) -> str | None:
        return entry[0]

    def take(self, lane: str, size_in_bytes: int, now: float) -> bool:
        if lane in self.closed:
            return False
        self.taken.append(lane)
        return True

    def give_back(self, lane: str, size_in_bytes: int) -> None:
        self.taken.remove(lane)

    def ready_at(self, lane: str, now: float) -> float:
        return now + 1.0

    def observe(self, observations: Sequence[LaneObservation], submitted_at: float, now: float) -> None:
        self.seen += observations

    def register_in_flight_request(self, request: RequestInfo) -> None: ...

    def register_completed_request(self, result: ResultInfo) -> None: ...

    def should_block(self, request: RequestInfo) -> bool:
        return self.blocks

    def get_max_batch_size(self) -> int:
        return 10

    def ask_again_after(self, request: RequestInfo) -> float | None:
        return 0.5


async def test_a_lane_without_room_is_passed_by_and_keeps_its_order(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """Others leave; its own entries leave in their order when it has room, at the time that it names."""
    lanes = Lanes()
    lanes.closed = {"a"}
    async with make_writer(strategy=lanes) as writer:
        await writer.write_many(["a1", "b1", "a2", "b2", "b3", "a3", "b4", "b5", "b6", "b7"])
        await settle()
        assert fake.accepted == ["b1", "b2", "b3", "b4", "b5", "b6", "b7"]
        assert writer.buffered_entries == 3
        lanes.closed = set()
        await writer.write_many(["a4", "a5", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"])
        await clock.advance(1.0)
        assert [entry for entry in fake.accepted if entry[0] == "a"] == ["a1", "a2", "a3", "a4", "a5"]
    assert writer.metrics.flush_reasons["pace"] >= 1


async def test_a_lane_has_its_share_of_the_buffer_and_leaves_the_rest_to_others(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """A lane without room holds two thirds of 100 entries. The call that waits for it holds up no call for another
    lane, and continues in its order when the lane has room."""
    lanes = Lanes()
    lanes.closed = {"a"}
    async with make_writer(strategy=lanes) as writer:
        writing = asyncio.create_task(writer.write_many([f"a{number}" for number in range(100)]))
        await settle()
        assert (writer.buffered_entries, writing.done()) == (67, False)
        assert writer.write_nowait(["b0", "a100", "b1"]) == 1
        assert writer.write_nowait([f"c{number}" for number in range(9)]) == 9
        await clock.advance(0.2)
        assert set(fake.accepted) == {"b0", *(f"c{number}" for number in range(9))}
        lanes.closed = set()
        await clock.advance(1.8)
        await writing
        await writer.write("a100")
    assert [entry for entry in fake.accepted if entry[0] == "a"] == [f"a{number}" for number in range(101)]
    assert writer.metrics.blocked_seconds["buffer_lane"] == pytest.approx(1.0)


async def test_a_lane_that_has_its_share_is_named_by_the_error(make_writer: MakeWriter) -> None:
    """Other lanes have room meanwhile."""
    lanes = Lanes()
    lanes.closed = {"a"}
    writer = await make_writer(strategy=lanes, max_block_time=timedelta(0)).__aenter__()
    with pytest.raises(BufferFullError) as caught:
        await writer.write_many(["a"] * 100)
    assert (caught.value.reason, caught.value.lane, writer.records_written) == ("lane", "a", 67)
    await writer.write("b")
    await writer.close()


async def test_a_key_that_waits_for_itself_leaves_room_to_other_keys(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock
) -> None:
    """One record of a key is in flight: the others of a busy key fill two thirds of the buffer at most."""
    fake.script = [fake.hold()]
    async with keyed(make_writer, fake, clock, ordering=Ordering.PER_KEY) as writer:
        writing = asyncio.create_task(writer.write_many([("busy", number) for number in range(100)]))
        await settle()
        assert (writer.buffered_entries, writing.done()) == (67, False)
        await asyncio.wait_for(writer.write(("other", 0)), 5)
        await clock.advance(0.1)
        assert fake.accepted == [("other", 0)]
        fake.requests[0].answer.set()
        for _ in range(100):
            await clock.advance(0.1)
        await writing
    assert [number for key, number in fake.accepted if key == "busy"] == list(range(100))


@pytest.mark.parametrize("many", [False, True])
async def test_an_entry_without_a_key_that_can_be_compared_is_refused_when_it_is_written(
    make_writer: MakeWriter, fake: FakeDestination, clock: FakeClock, many: bool
) -> None:
    """Later no caller could get the error, and the entry would be lost on its way out of the buffer."""
    async with keyed(make_writer, fake, clock, ordering=Ordering.PER_KEY) as writer:
        wrong = (["no key"], 1)
        with pytest.raises(RecordError, match=rf"record {int(many)}: .*unhashable"):
            await (writer.write_many([("a", 0), wrong]) if many else writer.write(wrong))
        await writer.write(("b", 2))
        await asyncio.wait_for(writer.flush(end_of_input=True), 5)
    assert fake.accepted == [*([("a", 0)] if many else []), ("b", 2)]
