"""Streams and their shards, as a tree of parents and children."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from penstock.services.console._values import lag_seconds, name_of

if TYPE_CHECKING:
    from penstock.efo_consumer import Shard, ShardCondition
    from penstock.services.console._values import Reading, Snapshot
    from penstock.services.console._views.view import View


_HASH_KEYS = 2**128


class ShardState(StrEnum):
    """The state of a shard."""

    OPEN = "open"
    CLOSED = "closed"
    """Was split or merged; its records can still be read."""
    EXPIRED = "expired"
    """Kinesis no longer lists it, because its records are gone; its children name it."""
    UNKNOWN = "unknown"
    """Kinesis was not asked, or does not list what a reader reads."""


@dataclass(frozen=True)
class ShardNode:
    """A shard in its place.

    Attributes:
        shard_id: such as `shardId-000000000000`.
        state: see there.
        depth: parents above it, along the first parent.
        parents: none, one after a split, two after a merge.
        children: those that are listed.
        share: of the hash keys, between 0 and 1; None where not known.
    """

    shard_id: str
    state: ShardState
    depth: int
    parents: tuple[str, ...]
    children: tuple[str, ...]
    share: float | None


def shard_tree(shards: Iterable[Shard] | None, read: Iterable[str] = ()) -> list[ShardNode]:
    """The shards, each parent before its children, a merged one below the first of its parents.

    Args:
        shards: as Kinesis lists them; None where it was not asked.
        read: ids of shards that readers read: those that Kinesis does not list come last.
    """
    listed = {shard.shard_id: shard for shard in shards or ()}
    children: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for shard in listed.values():
        for parent in shard.parent_shard_ids:
            children.setdefault(parent, []).append(shard.shard_id)
        for parent in shard.parent_shard_ids[:1]:
            below.setdefault(parent, []).append(shard.shard_id)
    roots = sorted({*(one for one in listed if not listed[one].parent_shard_ids), *(below.keys() - listed.keys())})
    nodes: list[ShardNode] = []
    seen: set[str] = set()
    # A stack of its own: a stream that is split again and again is deeper than Python's.
    waiting = [(one, 0) for one in reversed(roots)]
    while waiting:
        shard_id, depth = waiting.pop()
        if shard_id in seen:
            continue
        seen.add(shard_id)
        nodes.append(_node(shard_id, depth, listed.get(shard_id), children))
        waiting += [(child, depth + 1) for child in sorted(below.get(shard_id, ()), reverse=True)]
    rest = sorted({*listed, *read} - seen)
    return nodes + [_node(one, 0, listed.get(one), children, unlisted=ShardState.UNKNOWN) for one in rest]


def _node(
    shard_id: str,
    depth: int,
    shard: Shard | None,
    children: dict[str, list[str]],
    unlisted: ShardState = ShardState.EXPIRED,
) -> ShardNode:
    following = tuple(sorted(children.get(shard_id, ())))
    if shard is None:
        return ShardNode(shard_id, unlisted, depth, (), following, None)
    state = ShardState.OPEN if shard.is_open else ShardState.CLOSED
    share = (int(shard.ending_hash_key) - int(shard.starting_hash_key) + 1) / _HASH_KEYS
    return ShardNode(shard_id, state, depth, shard.parent_shard_ids, following, share)


PAGE_SIZES = (100, 250, 1_000)
ORDERS = ("tree", "lag")


@dataclass(frozen=True, kw_only=True)
class StreamRow:
    """A stream in the list of streams; numbers are None where not known."""

    name: str
    open_shards: int | None
    closed_shards: int | None
    read_shards: int
    consumers: int
    lag: float | None
    """The largest of its shards, in seconds."""
    losses: int
    troubles: Sequence[str]
    """Why shards cannot be read at the moment; each text once."""
    hot: Sequence[str]
    """Shards that are near their limit."""
    are_losses_partial: bool
    """Whether its readers follow more shards than were looked at: the losses are at least what is said here."""
    is_lag_partial: bool
    """The same of the lag."""


HOT_SHARE = 0.8
"""A shard is marked from this share of its limit on."""
_MOST_BYTES, _MOST_RECORDS = 1_000_000.0, 1_000.0
_CLOSE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class ShardRates:
    """What comes into a shard's reader, and what its query takes, per second; None where not known."""

    records: float | None
    received_bytes: float | None
    taken_bytes: float | None
    """That a query took of the buffers."""
    load: float | None
    """The share of a shard's limit (1 MB and 1,000 records a second); None while the reader catches up, when the rates
    say nothing about what is written now."""

    @property
    def is_hot(self) -> bool:
        """Whether the shard is near its limit."""
        return self.load is not None and self.load >= HOT_SHARE


def shard_rates(view: View, readings: Sequence[Reading]) -> ShardRates | None:
    """The rates of the reader that is nearest to the tip, as all read the same records; None without a reader."""
    if not readings:
        return None
    best = min(readings, key=lambda one: (one.stats.millis_behind_latest < 0, one.stats.millis_behind_latest))
    lag = lag_seconds(best.stats.millis_behind_latest)
    records, received, taken = (view.snapshot.rates.get((*best.series, what)) for what in ("records", "bytes", "taken"))
    known = [rate / most for rate, most in ((records, _MOST_RECORDS), (received, _MOST_BYTES)) if rate is not None]
    is_close = lag is not None and lag <= _CLOSE_SECONDS
    return ShardRates(
        records=records,
        received_bytes=received,
        taken_bytes=taken,
        load=max(known, default=None) if is_close else None,
    )


@dataclass(frozen=True)
class Untaken:
    """How far a query is behind its reader: what the reader holds, and the query has not finished with."""

    records: int
    """0 where only the bytes are known, as of a reader on an executor."""
    size_bytes: int
    """Of data and partition keys."""
    seconds: float | None
    """For how long the console has seen the query take nothing of it; None where nothing waits, or is not known."""


def untaken(view: View, readings: Sequence[Reading]) -> Untaken:
    """What waits in the buffers of all sessions of these readings together."""
    waiting = [one for one in readings if one.stats.buffered_bytes]
    times = [one.taken_at for one in waiting if one.taken_at is not None]
    return Untaken(
        sum(one.stats.buffered_records for one in waiting),
        sum(one.stats.buffered_bytes for one in waiting),
        max(0.0, view.now - min(times)) if times else None,
    )


@dataclass(frozen=True)
class Sparkline:
    """The largest lag of a stream over the last minutes, as a line in a box of `WIDTH` by `HEIGHT`."""

    WIDTH: ClassVar[int] = 240
    HEIGHT: ClassVar[int] = 36
    points: str
    """As SVG's `polyline` has them."""
    highest: float
    """In seconds."""
    latest: float
    """In seconds."""
    seconds: float
    """From the first point to the last."""


def sparkline(view: View, stream: str) -> Sparkline | None:
    """The line of a stream; None before there are two points."""
    points = view.snapshot.lags.get(stream, ())
    if len(points) < 2:
        return None
    first, last = points[0][0], points[-1][0]
    highest = max(lag for _, lag in points)
    across, up = Sparkline.WIDTH / max(last - first, 0.001), (Sparkline.HEIGHT - 4) / max(highest, 1.0)
    line = " ".join(f"{(at - first) * across:.1f},{Sparkline.HEIGHT - 2 - lag * up:.1f}" for at, lag in points)
    return Sparkline(line, highest, points[-1][1], last - first)


@dataclass(frozen=True, kw_only=True)
class ShardRow:
    """A shard, with what its readers say."""

    node: ShardNode
    readings: Sequence[Reading]
    worst: Reading | None
    """That with the largest lag."""
    rates: ShardRates | None
    untaken: Untaken
    now: float
    """Seconds since the epoch."""

    @property
    def age(self) -> float | None:
        """Seconds for which the shard has been in its condition; None where not known."""
        since = 0 if self.condition is None else self.condition.since_millis
        return max(0.0, self.now - since / 1000) if since > 0 else None

    @property
    def lag(self) -> float | None:
        """Seconds, the largest of its readers."""
        return None if self.worst is None else lag_seconds(self.worst.stats.millis_behind_latest)

    @property
    def condition(self) -> ShardCondition | None:
        """The condition at the reader that has the most trouble with it, for the longest time."""
        found = [reading.stats.condition for reading in self.readings]
        return min(found, key=lambda one: (one.is_well, one.since_millis), default=None)

    def total(self, name: str) -> int:
        """The sum over its readers of a number of `ShardStats`."""
        return sum(getattr(reading.stats, name) for reading in self.readings)


@dataclass(frozen=True, kw_only=True)
class ReaderRow:
    """A session of a reader, with what it says of all shards of a stream together."""

    endpoint: str
    session_id: str
    shards: int
    lag: float | None
    """Seconds, the largest."""
    worst_shard: str
    """That with the largest lag; empty where none lags."""
    troubled: int
    """Shards that it cannot read at the moment."""
    records: int
    untaken: Untaken
    replays: int
    losses: int


@dataclass(frozen=True, kw_only=True)
class ShardPage:
    """A part of the shards of a stream."""

    rows: Sequence[ShardRow]
    total: int
    page: int
    """From 1."""
    pages: int
    size: int
    by_state: Sequence[tuple[ShardState, int]]
    """How many shards are in each state that occurs."""
    unnamed: int
    """Shards that readers follow and that are not known one by one, at most."""

    @property
    def columns(self) -> frozenset[str]:
        """Columns in which a row has something: `readings` (all that readers say), `share`, `parents`, `children`."""
        found = {name for row in self.rows for name in ("parents", "children") if getattr(row.node, name)}
        found |= {"share"} if any(row.node.share is not None for row in self.rows) else set()
        return frozenset(found | ({"readings"} if any(row.readings for row in self.rows) else set()))

    @property
    def ids(self) -> frozenset[str]:
        """The ids of the shards on this page."""
        return frozenset(row.node.shard_id for row in self.rows)


def known_streams(snapshot: Snapshot, also: Sequence[str] = ()) -> dict[str, str]:
    """The streams that services name, and some more: by name, with the ARN of those that go by it."""
    told = {consumer.stream_name for consumer in snapshot.consumers} | set(also)
    told |= {stats.stream_name for one in snapshot.readers for session in one.value or () for stats in session.shards}
    told |= {sink.destination for one in snapshot.sinks for sink in one.value or () if sink.kind == "kinesis"}
    announced = {name for one in snapshot.drivers for driver in one.value or () for name in driver.stream_names}
    listed = set((snapshot.kinesis.value or {}) if snapshot.kinesis is not None else {})
    found: dict[str, str] = {}
    # What a job announces of itself leads to no other stream than the one that a service names.
    for names in (told, announced, listed):
        # ARNs come last and stay: they say more.
        ordered = sorted(names, key=lambda name: name.startswith("arn:"))
        found = {name_of(name): name for name in ordered if name_of(name)} | found
    return found


def stream_rows(view: View) -> list[StreamRow]:
    """One entry per stream, ordered by name."""
    snapshot = view.snapshot
    readings, unnamed = snapshot.readings(), snapshot.unnamed_shards()
    unseen = snapshot.unnamed_shards(on_executors=False)
    consumers = Counter(name_of(one.stream_name) for one in snapshot.consumers)
    return [
        _stream_row(view, name, readings.get(name, {}), consumers[name], unnamed.get(name, 0), is_cut=name in unseen)
        for name in sorted(known_streams(snapshot, view.settings.streams))
    ]


def reader_rows(view: View, stream: str) -> list[ReaderRow]:
    """One entry per session that reads the stream: the largest lag first."""
    sessions: dict[tuple[str, str], list[Reading]] = {}
    for shard in view.snapshot.readings().get(stream, {}).values():
        for reading in shard:
            sessions.setdefault((reading.endpoint, reading.session_id), []).append(reading)
    rows = [_reader_row(view, endpoint, session, readings) for (endpoint, session), readings in sessions.items()]
    return sorted(rows, key=lambda row: (0.0 if row.lag is None else -1.0 - row.lag, row.session_id, row.endpoint))


def shard_page(view: View, stream: str, *, order: str = "tree", page: int = 1, size: int = PAGE_SIZES[1]) -> ShardPage:
    """A page of a stream's shards: in the order of the tree, or those that lag most first."""
    readings = view.snapshot.readings().get(stream, {})
    nodes = shard_tree(view.snapshot.listed(stream), readings)
    if order == "lag":
        lags = {node.shard_id: _worst(readings.get(node.shard_id, ()))[1] for node in nodes}
        nodes.sort(key=lambda node: -1.0 if (lag := lags[node.shard_id]) is None else lag, reverse=True)
    pages = max(1, -(-len(nodes) // size))
    page = min(max(1, page), pages)
    shown = nodes[(page - 1) * size : page * size]
    counts = {state: sum(node.state is state for node in nodes) for state in ShardState}
    return ShardPage(
        rows=[_shard_row(view, node, readings.get(node.shard_id, ())) for node in shown],
        total=len(nodes),
        page=page,
        pages=pages,
        size=size,
        by_state=[(state, count) for state, count in counts.items() if count],
        unnamed=view.snapshot.unnamed_shards().get(stream, 0),
    )


def _stream_row(
    view: View, name: str, readings: dict[str, list[Reading]], consumers: int, unnamed: int, *, is_cut: bool
) -> StreamRow:
    listed = view.snapshot.listed(name)
    open_shards = None if listed is None else sum(shard.is_open for shard in listed)
    every = [reading for shard in readings.values() for reading in shard]
    _, lag = _worst(every)
    return StreamRow(
        name=name,
        open_shards=open_shards,
        closed_shards=None if listed is None or open_shards is None else len(listed) - open_shards,
        read_shards=len(readings) + unnamed,
        consumers=consumers,
        lag=lag,
        losses=sum(reading.stats.losses for reading in every),
        troubles=_troubles([reading for reading in every if reading.stats.condition.is_troubled]),
        hot=sorted(shard for shard, of in readings.items() if (rates := shard_rates(view, of)) and rates.is_hot),
        are_losses_partial=unnamed > 0,
        is_lag_partial=is_cut,
    )


def _troubles(readings: Sequence[Reading]) -> list[str]:
    causes: dict[str, list[Reading]] = {}
    for reading in readings:
        condition = reading.stats.condition
        causes.setdefault(f"{condition.state.value}: {condition.cause}", []).append(reading)
    return [
        f"{f'shard {group[0].stats.shard_id} is' if len(group) == 1 else f'{len(group)} shards are'} {words}"
        for words, group in sorted(causes.items())
    ]


def _reader_row(view: View, endpoint: str, session_id: str, readings: Sequence[Reading]) -> ReaderRow:
    worst, lag = _worst(readings)
    return ReaderRow(
        endpoint=endpoint,
        session_id=session_id,
        shards=len(readings),
        lag=lag,
        worst_shard=worst.stats.shard_id if worst is not None and lag else "",
        troubled=sum(one.stats.condition.is_troubled for one in readings),
        records=sum(one.stats.records for one in readings),
        untaken=untaken(view, readings),
        replays=sum(one.stats.replays for one in readings),
        losses=sum(one.stats.losses for one in readings),
    )


def _shard_row(view: View, node: ShardNode, readings: Sequence[Reading]) -> ShardRow:
    worst, _ = _worst(readings)
    return ShardRow(
        node=node,
        readings=readings,
        worst=worst,
        rates=shard_rates(view, readings),
        untaken=untaken(view, readings),
        now=view.wall_now,
    )


def _worst(readings: Sequence[Reading]) -> tuple[Reading | None, float | None]:
    if not readings:
        return None, None
    worst = max(readings, key=lambda reading: reading.stats.millis_behind_latest)
    return worst, lag_seconds(worst.stats.millis_behind_latest)
