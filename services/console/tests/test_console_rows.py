"""What pages say in rows: readers, jobs and gateways, and the state of consumers that have just come."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from console_world import END, session, shard_stats, two_stages

from penstock.efo_consumer import SessionInfo, ShardCondition, ShardState
from penstock.operator_attributes import (
    Boundedness,
    JobGraph,
    LocalStageScheduler,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageStarted,
)
from penstock.operator_attributes.testing import FakeClock
from penstock.registration import Consumer, ConsumerState
from penstock.rpc import ServerSettings
from penstock.services.console._settings import ConsoleSettings, Endpoint
from penstock.services.console._sources.services import RegistrySource
from penstock.services.console._values import (
    Answer,
    Kind,
    Lags,
    Rates,
    SinkDestination,
    Snapshot,
    State,
    reading_counters,
)
from penstock.services.console._views.attention import concerns
from penstock.services.console._views.jobs import by_state, job_rows
from penstock.services.console._views.lists import consumer_rows, running_readers
from penstock.services.console._views.streams import reader_rows, shard_page, sparkline, stream_rows
from penstock.services.console._views.view import View, endpoints

README = Path(__file__).parents[1] / "README.md"


def view(snapshot: Snapshot) -> View:
    return View(snapshot=snapshot, settings=ConsoleSettings(server=ServerSettings()), now=100.0)


def test_readers_are_told_by_session() -> None:
    """The one that is latest first, with the shard that is; one whose lag is not known comes last."""
    slow = [shard_stats("flights", one, millis_behind_latest=one * 9_000, records=5, replays=1) for one in range(3)]
    quick = [shard_stats("flights", 0, millis_behind_latest=0, losses=2), shard_stats("orders", 0)]
    new = [shard_stats("flights", 1, millis_behind_latest=-1)]
    answers = (
        Answer(kind=Kind.READER, endpoint="a:1", value=(session("new", new), session("quick", quick))),
        Answer(kind=Kind.READER, endpoint="b:1", value=(session("slow", slow),)),
    )
    rows = reader_rows(view(Snapshot(readers=answers)), "flights")
    assert [(row.endpoint, row.session_id, row.shards, row.lag) for row in rows] == [
        ("b:1", "slow", 3, 18.0),
        ("a:1", "quick", 1, 0.0),
        ("a:1", "new", 1, None),
    ]
    assert [row.worst_shard for row in rows] == ["shardId-000000000002", "", ""]
    assert (rows[0].records, rows[0].replays, rows[1].losses) == (15, 3, 2)


def test_shards_that_cannot_be_read_say_why() -> None:
    """In the list of readers, with the shard, and among what somebody should look at; a renewal is not trouble."""
    throttled = ShardCondition(ShardState.THROTTLED, 2_000, "Rate exceeded")
    refused = ShardCondition(ShardState.REFUSED, 1_000, "no answer")
    renewed = ShardCondition(ShardState.RESUBSCRIBING, 1_000, "its five minutes are over")
    shards = [
        shard_stats("flights", number, condition=condition)
        for number, condition in enumerate([throttled, throttled, refused, renewed, ShardCondition()])
    ]
    other = [shard_stats("flights", 4, condition=throttled)]
    readers = (Answer(kind=Kind.READER, endpoint="a:1", value=(session("q", shards), session("r", other))),)
    now = view(Snapshot(readers=readers))
    assert sorted((row.session_id, row.troubled) for row in reader_rows(now, "flights")) == [("q", 3), ("r", 1)]
    rows = shard_page(now, "flights").rows
    assert [str(row.condition) for row in rows[2:]] == [
        "refused since 1970-01-01T00:00:01Z: no answer",
        "resubscribing since 1970-01-01T00:00:01Z: its five minutes are over",
        "throttled since 1970-01-01T00:00:02Z: Rate exceeded",
    ]
    assert [one.what for one in concerns(now)] == [
        "Stream flights: shard shardId-000000000002 is refused: no answer",
        "Stream flights: 3 shards are throttled: Rate exceeded",
    ]


def test_a_stream_that_goes_by_its_arn_is_shown_by_its_name() -> None:
    """As streams of other accounts are: its readers, lags, losses, shards and consumers are found all the same."""
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights"
    late = replace(shard_stats("flights", 0, millis_behind_latest=75_000, losses=2), stream_name=arn)
    reader = Answer(kind=Kind.READER, endpoint="a:1", state=State.UP, value=(session("query-1", [late]),))
    consumer = Consumer(
        stream_name=arn,
        consumer_name="delays",
        consumer_arn=f"{arn}/consumer/delays:1",
        registration_is_ours=True,
        lease=None,
        age_seconds=3_600.0,
    )
    registry = Answer(kind=Kind.REGISTRY, endpoint="b:1", state=State.UP, value=(consumer,))
    now = view(Snapshot(readers=(reader,), registry=registry))
    (row,) = stream_rows(now)
    assert (row.name, row.lag, row.losses, row.read_shards, row.consumers) == ("flights", 75.0, 2, 1, 1)
    assert [one.session_id for one in reader_rows(now, "flights")] == ["query-1"]
    assert shard_page(now, "flights").rows[0].lag == 75.0
    assert concerns(now)[0].what == "Stream flights is read 75 s late"
    assert consumer_rows(now)[0].stream == "flights"


async def test_jobs_that_want_somebody_come_first() -> None:
    """Failed ones, then those that run, those that have ended last; and how many there are of each."""
    async with LocalStageScheduler() as scheduler:
        for job_id in ("a-done", "b-fresh", "c-stopped", "d-runs", "e-failed"):
            job = await scheduler.submit(job_id, two_stages(job_id))
            first, second = (stage.stage_id for stage in job.stages)
            if job_id == "b-fresh":
                continue
            await scheduler.report(job_id, StageStarted(stage_id=first))
            if job_id == "e-failed":
                await scheduler.report(job_id, StageFailed(stage_id=first, error="x", retryable=False))
            elif job_id == "c-stopped":
                await scheduler.report(job_id, StageInterrupted(stage_id=first))
            elif job_id == "a-done":
                for event in (StageFinished(stage_id=first), StageStarted(stage_id=second)):
                    await scheduler.report(job_id, event)
                await scheduler.report(job_id, StageFinished(stage_id=second))
        jobs = await scheduler.list_jobs()
    rows = job_rows(view(Snapshot(stages=Answer(kind=Kind.STAGES, endpoint="a:1", value=jobs))))
    assert [row.job.job_id for row in rows] == ["e-failed", "d-runs", "c-stopped", "b-fresh", "a-done"]
    assert by_state(rows) == [("failed", 1), ("running", 1), ("interrupted", 1), ("ready", 1), ("finished", 1)]
    assert {row.levels for row in rows} == {2}


async def test_a_job_is_as_deep_as_its_longest_way() -> None:
    """Not as it has stages: those side by side count once."""
    graph = JobGraph("wide")
    names = [f"table {number}" for number in range(5)]
    for name in names:
        graph.add_source(f"{name}.csv", boundedness=Boundedness.BOUNDED)
        graph.add_operator(name, f"{name}.csv", keyed=True, window=END)
    graph.add_operator("all", *names, keyed=True, window=END)
    graph.add_sink("file", "all")
    async with LocalStageScheduler() as scheduler:
        job = await scheduler.submit("wide", graph)
    (row,) = job_rows(view(Snapshot(stages=Answer(kind=Kind.STAGES, endpoint="a:1", value=(job,)))))
    assert (row.levels, len(job.stages)) == (3, 7)


def test_words_name_the_service_that_is_there() -> None:
    """Or a placeholder, without an endpoint."""
    readers: tuple[Answer[tuple[SessionInfo, ...]], ...] = tuple(
        Answer(kind=Kind.READER, endpoint=one, state=State.UP) for one in ("a:1", "b:1")
    )
    found = endpoints(view(Snapshot(readers=readers)))
    assert (found["reader"], found["stages"]) == ("a:1", "host:port")


class Registry:
    """A client of a registry that counts how often states are asked for."""

    left_out = 0

    def __init__(self, *, is_slow: bool = False) -> None:
        self.states = {"arn:1": ConsumerState.ACTIVE}
        self.asked = 0
        self.is_slow = is_slow

    async def list_consumers(self, *, with_state: bool) -> list[Consumer]:
        self.asked += with_state
        if with_state and self.is_slow:
            raise TimeoutError
        return [
            Consumer(
                stream_name="flights",
                consumer_name=arn,
                consumer_arn=arn,
                registration_is_ours=True,
                age_seconds=1.0,
                state=state if with_state else None,
                lease=None,
                held_seconds=0.0,
                cost_per_hour_usd=None,
            )
            for arn, state in self.states.items()
        ]

    async def close(self) -> None:
        pass


async def test_consumers_are_listed_without_states_while_kinesis_is_slow() -> None:
    """The registry asks Kinesis for states, which may take longer than an answer may; it is asked again in a minute."""
    registry, clock = Registry(is_slow=True), FakeClock()
    source = RegistrySource(Endpoint(kind=Kind.REGISTRY, address="a:1"), clock=clock)
    source._client = registry  # type: ignore[assignment]
    for _ in range(3):
        assert [(one.consumer_name, one.state) for one in await source.fetch()] == [("arn:1", None)]
    assert registry.asked == 1
    clock.advance(61.0)
    registry.is_slow = False
    assert [one.state for one in await source.fetch()] == [ConsumerState.ACTIVE]


async def test_the_state_of_a_consumer_that_came_is_soon_known() -> None:
    """States are asked for once a minute, as that takes calls of Kinesis; sooner while one is new or changes."""
    registry, clock = Registry(), FakeClock()
    source = RegistrySource(Endpoint(kind=Kind.REGISTRY, address="a:1"), clock=clock)
    source._client = registry  # type: ignore[assignment]

    async def states() -> list[ConsumerState | None]:
        clock.advance(1.0)
        return [one.state for one in await source.fetch()]

    for _ in range(50):
        assert await states() == [ConsumerState.ACTIVE]
    assert registry.asked == 1
    registry.states["arn:2"] = ConsumerState.CREATING
    assert await states() == [ConsumerState.ACTIVE, None]
    assert await states() == [ConsumerState.ACTIVE, ConsumerState.CREATING]
    registry.states["arn:2"] = ConsumerState.ACTIVE
    for _ in range(5):
        latest = await states()
    assert latest == [ConsumerState.ACTIVE] * 2
    asked = registry.asked
    for _ in range(50):
        await states()
    assert registry.asked == asked


async def test_states_of_consumers_without_an_arn_are_not_mixed_up() -> None:
    """Those whose registration is only begun have none yet: each keeps its own state until it is asked for again."""

    class Beginning(Registry):
        async def list_consumers(self, *, with_state: bool) -> list[Consumer]:
            found = await super().list_consumers(with_state=with_state)
            return [replace(one, consumer_arn="") for one in found]

    registry = Beginning()
    registry.states = {"one": ConsumerState.ACTIVE, "other": ConsumerState.ABSENT}
    source = RegistrySource(Endpoint(kind=Kind.REGISTRY, address="a:1"), clock=FakeClock())
    source._client = registry  # type: ignore[assignment]
    for _ in range(2):
        assert [one.state for one in await source.fetch()] == [ConsumerState.ACTIVE, ConsumerState.ABSENT]
    assert registry.asked == 1


def test_one_reader_in_trouble_does_not_hide_what_else_needs_attention() -> None:
    """A reader may give each of a thousand shards a trouble of its own."""
    refused = [ShardCondition(ShardState.REFUSED, cause=f"cause {one}") for one in range(1_000)]
    shards = [shard_stats("flights", one, condition=condition) for one, condition in enumerate(refused)]
    reader = Answer(kind=Kind.READER, endpoint="a:1", value=(session("query", shards),))
    numbers: dict[str, Any] = dict.fromkeys(SinkDestination.__dataclass_fields__, 1)
    sink = SinkDestination(**numbers)
    found = concerns(view(Snapshot(readers=(reader,), sinks=(Answer(kind=Kind.SINK, endpoint="s:1", value=(sink,)),))))
    assert [one.page for one in found] == ["stream"] * 20 + ["streams", "sinks", "sinks"]
    assert "980 more" in found[20].what


def test_what_a_query_does_not_take_needs_attention() -> None:
    """A reader that caught up says nothing of its query: 2,960 of 3,000 records wait, and nothing was taken since."""
    well = ShardCondition(ShardState.CAUGHT_UP)
    stats = shard_stats("flights", 0, records=3_000, buffered_records=2_960, buffered_bytes=296_000, condition=well)
    readers = (Answer(kind=Kind.READER, endpoint="a:1", value=(session("query", [stats]),)),)
    for taken_at, expected in ((99.0, []), (39.0, ["query"])):
        now = view(Snapshot(readers=readers, taken_at={("a:1", "query"): taken_at}))
        assert [one.what.split()[1] for one in concerns(now)] == expected
        waiting = running_readers(now)[0].untaken
        assert (waiting.records, waiting.size_bytes, waiting.seconds) == (2_960, 296_000, 100.0 - taken_at)
        assert reader_rows(now, "flights")[0].untaken == shard_page(now, "flights").rows[0].untaken == waiting


def test_the_example_of_the_readme_runs() -> None:
    """As it stands: it needs nothing but the package."""
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    ended = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


@pytest.mark.parametrize(
    ("lag", "received", "is_hot"),
    [(500, 850_000, True), (500, 700_000, False), (60_000, 2_000_000, False), (-1, 2_000_000, False)],
)
def test_a_hot_shard_is_marked_where_its_reader_is_near_the_tip(lag: int, received: int, is_hot: bool) -> None:
    """One that catches up receives more than is written; what is in the buffer was not taken by a query."""
    rates, answers = Rates(), []
    for now, size in ((10.0, 0), (12.0, 2 * received)):
        busy = shard_stats("flights", 0, millis_behind_latest=lag, bytes=size, records=size // 10_000)
        stats = [replace(busy, buffered_bytes=size // 2), shard_stats("flights", 1)]
        answers.append(Answer(kind=Kind.READER, endpoint="a:1", value=(session("q", stats),)))
        rates.take("reader", reading_counters([("a:1", answers[-1].value or ())]), now)
    now_seen = view(Snapshot(readers=(answers[-1],), rates=rates.per_second()))
    busy_row, idle_row = shard_page(now_seen, "flights").rows
    assert busy_row.rates is not None
    assert (busy_row.rates.received_bytes, busy_row.rates.taken_bytes) == (received, received / 2)
    assert busy_row.rates.is_hot is is_hot
    assert idle_row.rates is not None
    assert (idle_row.rates.received_bytes, idle_row.rates.is_hot) == (0.0, False)
    assert any("near what a shard takes" in one.what for one in concerns(now_seen)) is is_hot
    rates.take("reader", {}, 14.0)
    assert not rates.per_second()


def test_lags_are_kept_for_a_line_of_some_minutes() -> None:
    """The largest of all readers of a stream; the points are bounded, and go when no reader reports the stream."""
    lags = Lags()
    for second in range(0, 400, 2):
        readers = [("a:1", [session("query", [shard_stats("flights", 0, millis_behind_latest=second * 1_000)])])]
        lags.take("reader a:1", readers, float(second))
        other = [shard_stats("flights", 1, millis_behind_latest=9_000), shard_stats("new", 0, millis_behind_latest=-1)]
        lags.take("reader b:1", [("b:1", [session("other", other)])], second + 0.5)
    points = lags.points()
    assert (list(points), len(points["flights"])) == (["flights"], 120)
    assert points["flights"][-1] == (398.0, 398.0)
    assert sparkline(view(Snapshot(lags={"flights": points["flights"][:1]})), "flights") is None
    line = sparkline(view(Snapshot(lags=points)), "flights")
    assert line is not None
    assert (line.highest, line.latest, line.seconds) == (398.0, 398.0, 238.0)
    assert len(line.points.split()) == 120
    assert line.points.split()[-1] == f"{line.WIDTH:.1f},2.0"
    lags.take("reader c:1", [("c:1", [session("late", [shard_stats("orders", 0)])])], 1_200.0)
    assert list(lags.points()) == ["orders"]
