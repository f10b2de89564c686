"""What the console computes: trees, costs, concerns, names and tokens."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace
from typing import Any

import pytest
from console_world import session, shard_stats

from penstock.efo_consumer import Shard
from penstock.registration import Consumer, ConsumerState
from penstock.rpc import ServerSettings
from penstock.services.console._access import is_known_host, token_of
from penstock.services.console._settings import ConsoleSettings
from penstock.services.console._values import (
    Answer,
    Kind,
    Rates,
    SinkDestination,
    Snapshot,
    State,
    sink_counters,
    sink_series,
)
from penstock.services.console._views.attention import concerns
from penstock.services.console._views.lists import consumer_rows
from penstock.services.console._views.streams import ShardState, shard_page, shard_tree, stream_rows
from penstock.services.console._views.view import Templates, View, bytes_words, seconds_words

TOP = 2**128 - 1


def shard(number: int, *parents: int, closed: bool = False) -> Shard:
    return Shard(
        shard_id=f"shardId-{number:012d}",
        parent_shard_ids=tuple(f"shardId-{parent:012d}" for parent in parents),
        starting_hash_key="0",
        ending_hash_key=str(TOP),
        starting_sequence_number="1",
        ending_sequence_number="2" if closed else None,
    )


def sink(**values: int) -> SinkDestination:
    texts = dict.fromkeys(("last_failure", "held_reason", "held_error_code"), "")
    names = {one.name for one in fields(SinkDestination)} - {"kind", "destination", *texts}
    given: dict[str, Any] = {**dict.fromkeys(names, 0), **values, **texts}
    return SinkDestination(kind="kinesis", destination="delays", **given)


def view(snapshot: Snapshot) -> View:
    settings = ConsoleSettings(server=ServerSettings(), consumer_shard_hour_usd=0.5)
    return View(snapshot=snapshot, settings=settings, now=100.0)


def test_shards_stand_below_those_that_they_continue() -> None:
    """Splits, merges below the first parent, parents that expired, and shards that only a reader knows."""
    listed = [shard(1, 0), shard(2, 0, closed=True), shard(3, 9, closed=True), shard(4, 2, 3), shard(7)]
    nodes = shard_tree(listed, ["shardId-000000000005"])
    shape = [(int(node.shard_id[-2:]), node.depth, node.state.value) for node in nodes]
    assert shape == [
        (0, 0, "expired"),
        (1, 1, "open"),
        (2, 1, "closed"),
        (4, 2, "open"),
        (7, 0, "open"),
        (9, 0, "expired"),
        (3, 1, "closed"),
        (5, 0, "unknown"),
    ]
    merged = next(node for node in nodes if node.shard_id.endswith("04"))
    assert [int(parent[-2:]) for parent in merged.parents] == [2, 3]
    assert nodes[0].children == (nodes[1].shard_id, nodes[2].shard_id)
    assert nodes[1].share == 1.0


def test_a_deep_line_of_shards_is_no_trouble() -> None:
    """A stream that was resharded ten thousand times, and one whose parents go in a circle, are listed whole."""
    nodes = shard_tree([shard(0, closed=True), *(shard(number, number - 1) for number in range(1, 10_000))])
    assert [node.depth for node in nodes] == list(range(10_000))
    assert len(shard_tree([shard(1, 2), shard(2, 1)])) == 2


def test_costs_are_open_shards_times_hours() -> None:
    """Closed shards cost nothing; without a listing the registry's own estimate counts."""
    one = Consumer(
        stream_name="s",
        consumer_name="c",
        consumer_arn="arn",
        registration_is_ours=True,
        lease=None,
        age_seconds=7_200.0,
        state=ConsumerState.ACTIVE,
        cost_per_hour_usd=9.0,
    )
    registry = Answer(kind=Kind.REGISTRY, endpoint="r", state=State.UP, value=(one,))
    (row,) = consumer_rows(view(Snapshot(registry=registry)))
    assert (row.shards, row.shard_hours, row.cost_per_hour, row.cost_so_far) == (None, None, 9.0, 18.0)
    shards = {"s": (shard(0, closed=True), shard(1, 0), shard(2, 0))}
    kinesis = Answer(kind=Kind.KINESIS, endpoint="k", state=State.UP, value=shards)
    (row,) = consumer_rows(view(Snapshot(registry=registry, kinesis=kinesis)))
    assert (row.shards, row.shard_hours, row.cost_per_hour, row.cost_so_far) == (2, 4.0, 1.0, 2.0)
    (concern,) = concerns(view(Snapshot(registry=registry, kinesis=kinesis)))
    assert "held by nobody and costs $1.00 an hour" in concern.what
    gone = replace(registry, value=(replace(one, state=ConsumerState.ABSENT),))
    assert concerns(view(Snapshot(registry=gone))) == []


def test_the_slowest_reader_of_a_shard_counts() -> None:
    """Two jobs read a shard; pages show the one that is late, and sort by it."""
    quick = session("quick", [shard_stats("s", 0, millis_behind_latest=10), shard_stats("s", 1, losses=1)])
    slow = session(
        "slow", [shard_stats("s", 1, millis_behind_latest=90_000), shard_stats("s", 2, millis_behind_latest=-1)]
    )
    reader = Answer(kind=Kind.READER, endpoint="r", state=State.UP, value=(quick, slow))
    seen = view(Snapshot(readers=(reader,)))
    (row,) = stream_rows(seen)
    assert (row.lag, row.read_shards, row.losses, row.open_shards) == (90.0, 3, 1, None)
    page = shard_page(seen, "s", order="lag", size=2)
    assert [row.node.shard_id[-1] for row in page.rows] == ["1", "0"]
    assert (page.pages, page.total, page.rows[0].lag) == (2, 3, 90.0)
    (last,) = shard_page(seen, "s", page=99, size=2).rows
    assert (last.lag, last.node.state) == (None, ShardState.UNKNOWN)
    assert [one.what for one in concerns(seen)] == [
        "Stream s is read 2 min late",
        "Stream s: 1 positions were lost before they were read",
    ]


def test_rates_are_between_two_answers() -> None:
    """A counter has none before there are two, or after its gateway restarted; destinations that end leave none."""
    rates, series = Rates(), sink_series("g", sink(), "records")
    expected = [(10, 100.0, None), (50, 104.0, 10.0), (5, 105.0, None)]
    for records, now, rate in expected:
        rates.take("g", sink_counters("g", [sink(records_out=records)]), now)
        assert rates.per_second().get(series) == rate
    rates.take("g", {}, 106.0)
    assert rates.per_second() == {}


@pytest.mark.parametrize(
    ("header", "known"),
    [
        ("localhost:8080", True),
        ("127.0.0.1", True),
        ("[::1]:80", True),
        ("10.1.2.3:443", True),
        ("Console.example.com", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost@evil.example", False),
        ("localhost/x", False),
        ("[::1", False),
        ("a:b", False),
        ("", False),
    ],
)
def test_a_host_is_an_address_or_a_name_that_was_allowed(header: str, known: bool) -> None:
    """A name that somebody else made lead here (DNS rebinding) is neither."""
    assert is_known_host(header, {"console.example.com"}) is known


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer a-token", "a-token"),
        ("bearer  a-token ", "a-token"),
        ("Basic OmEtdG9rZW4=", "a-token"),
        ("Basic YW55Ym9keTphLXRva2Vu", "a-token"),
        ("basic YW55Ym9keTphOnRva2Vu", "a:token"),
        ("Basic YS10b2tlbg==", ""),
        ("Basic a-token", ""),
        ("Basic /////w==", ""),
        ("Basic \u00e9", ""),
        ("Digest a-token", ""),
        ("a-token", ""),
        ("", ""),
    ],
)
def test_a_token_is_a_bearer_token_or_a_password(header: str, token: str) -> None:
    """Whatever the user is called."""
    assert token_of(header) == token


def test_numbers_are_said_shortly() -> None:
    """In units that fit, and with a dash where nothing is known."""
    seconds = [seconds_words(one) for one in (None, 0.0, 0.42, 12.3, 200.0, 8_000.0, 9e5)]
    assert seconds == ["–", "0 s", "0.4 s", "12 s", "3 min", "2.2 h", "10 d"]
    assert [bytes_words(one) for one in (0, 999, 1_000, 123_456, 7.34e6)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "123 kB",
        "7.3 MB",
    ]
    assert math.isclose(float(bytes_words(5e15).split()[0]), 5.0)


def luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_text_can_be_read_on_what_is_behind_it() -> None:
    """WCAG's contrast of 4.5, in light and in dark."""
    style = Templates().static["console.css"].decode()
    both = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", style)
    assert len(both) == style.count("light-dark(")
    for theme in ({name: light for name, light, _ in both}, {name: dark for name, _, dark in both}):
        pairs = [(ink, ground) for ink in ("ink", "soft", "accent") for ground in ("page", "card")]
        pairs += [
            (state, f"{state}-fill") for state in ("good", "bad", "warn", "plain", "busy", "skip", "again", "halt")
        ]
        # Buttons, and links in rows that were jumped to.
        pairs += [("card", "accent"), ("accent", "busy-fill"), ("ink", "busy-fill"), ("bad", "card")]
        for pair in pairs:
            low, high = sorted(luminance(theme[name]) for name in pair)
            assert (high + 0.05) / (low + 0.05) >= 4.5, pair
