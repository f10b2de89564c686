"""What a bounded read takes of each shard: decided once, when it is planned."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Self

from penstock.aws import AwsSession
from penstock.efo_consumer import DataLossError, Shard, ShardKeys, ShardPosition, StreamKeys, with_ancestors
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.values import PositionOption, PositionOptionType, epoch_micros
from penstock.spark_plugin._reading.initial_positions import in_shards, latest_millis, named, seam_of
from penstock.spark_plugin.errors import OptionError

_log = logging.getLogger(__name__)
_LONGEST_WAIT = timedelta(days=366)
_UNNOTED_WAIT = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class BoundedShard:
    """A shard, and what a bounded read takes of it."""

    stream_name: str
    shard_id: str
    after: ShardPosition
    """At its end, nothing of the shard itself is read, but the shards that continue it."""
    before_micros: int | None = None
    """The first record that arrived at this time (microseconds since 1970) or later ends it, and is left out."""
    upto: str | None = None
    """The last sequence number; later ones are left out."""
    hash_keys: ShardKeys | None = None
    """The shard's and its parent's: which user records of aggregates come by another shard as well."""
    planned_millis: int = 0
    """When the read was planned, by the service's clock: what arrived before is there."""
    with_children: bool = False
    """Whether shards that continue this one, and that no list showed when the read was planned, belong to it."""
    listed_children: tuple[str, ...] = ()
    """Shards that continue this one, and that a list did show: what is read of them is in the plan."""
    created_millis: int | None = None
    """When the stream was created, if that may be asked: another one of its name is not what was planned."""
    is_open: bool = True
    """Whether a list showed the shard open when the read was planned. Otherwise only child shards are its end."""

    @property
    def complete_millis(self) -> int:
        """The time whose records have to be seen before the tip of the shard is the end of the read."""
        if self.before_micros is None:
            return self.planned_millis
        before = -(-self.before_micros // 1000)
        # A filter may name a time that is to come; the last sequence number was there when the read was planned.
        return before if self.upto is None else min(before, self.planned_millis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Both ends of a bounded read: each is a position for all shards, or one for each that is named."""

    after: Mapping[str, ShardPosition]
    """By stream."""
    after_shards: Mapping[str, Mapping[str, ShardPosition]]
    """By stream and shard, where the user has named them; children begin at the time of these, or at TRIM_HORIZON."""
    before_micros: int | None
    upto_shards: Mapping[str, Mapping[str, ShardPosition]]
    """By stream and shard, where the user has named them; nothing else is read then."""
    planned_micros: int = 0
    """When the read was planned, by the service's clock."""

    @classmethod
    def resolve(cls, session: AwsSession, options: KinesisOptions, now_micros: int) -> Self:
        """The bounds that the options name, for a read that is planned now. Makes seams that are not there yet."""
        start, end = options.initial_position, options.ending_position
        before: int | None
        if end is None:
            before = now_micros
        elif end.streams is not None:
            before = None
        else:
            before = _micros(session, options, end, now_micros)
        ends_now = before if end is None else None
        of_streams = named(start, options)
        if of_streams:
            after = {name: _after(session, options, one, ends_now) for name, one in of_streams.items()}
        else:
            after = dict.fromkeys(options.stream_name, _after(session, options, start, ends_now))
        bounds = cls(
            after=after,
            after_shards=in_shards(of_streams, lambda: _latest_millis(session, options, ends_now)),
            before_micros=before,
            upto_shards=in_shards(named(end, options), lambda: now_micros // 1000),
            planned_micros=now_micros,
        )
        if now_micros:  # without it nothing is read
            bounds.check()
        return bounds

    @property
    def names_shards(self) -> bool:
        """Whether shards have ends of their own, which their relatives must be known for."""
        return bool(self.after_shards or self.upto_shards)

    def named_in(self, stream: str) -> set[str]:
        """The shards of a stream that the user has named."""
        return {*self.after_shards.get(stream, ()), *self.upto_shards.get(stream, ())}

    def check(self) -> None:
        """Refuse a read that ends before it begins or more than a year from now. Log how long the read waits.

        Raises:
            OptionError: the end lies before the beginning.
            OptionError: the end is too far in the future.
        """
        ahead = timedelta(microseconds=(self.before_micros or 0) - self.planned_micros)
        if ahead > _LONGEST_WAIT:
            end = datetime.fromtimestamp((self.before_micros or 0) / 1e6, UTC).isoformat()
            raise OptionError.invalid("endingPosition", end, "at most a year from now: the read waits for its end")
        if ahead > _UNNOTED_WAIT:
            _log.warning(
                "the end of the read is in the future: the read waits for %s",
                timedelta(seconds=ahead // timedelta(seconds=1)),
            )
        for stream, after in self.after.items():
            begin = after.timestamp_millis
            if begin is not None and self.before_micros is not None and -(-self.before_micros // 1000) < begin:
                seconds = begin / 1000 - self.before_micros / 1e6
                read = "the read" if len(set(self.after.values())) == 1 else f"the read of {stream}"
                raise OptionError.contradictory(
                    "initialPosition",
                    "endingPosition",
                    f"{read} ends {seconds:.3f} s before it begins; without an end it ends now",
                )

    def of_stream(
        self, stream: str, shards: Sequence[Shard], keys: StreamKeys, *, fail_on_data_loss: bool = True
    ) -> Iterator[BoundedShard]:
        """The shards of a stream that are read, and how far. `keys` knows at least these shards.

        Raises:
            OptionError: a shard's end lies before its start.
            DataLossError: a named shard is not listed any more, and `fail_on_data_loss` is true.
        """
        after_shards, upto_shards = self.after_shards.get(stream), self.upto_shards.get(stream)
        _check_listed(stream, shards, after_shards or {}, upto_shards or {}, fail_on_data_loss=fail_on_data_loss)
        past: set[str] = set()
        begins: Mapping[str, ShardPosition] = {}
        if after_shards is not None:
            past = with_ancestors(after_shards, shards) - after_shards.keys()
            begins = _with_descendants(after_shards, shards, self.before_micros)
        # All that precedes a named end belongs to the read: the parents of its shards are read to their end.
        whole: set[str] = set()
        if upto_shards is not None:
            upto_shards = _with_descendants(upto_shards, shards, None)
            whole = with_ancestors(upto_shards, shards) - upto_shards.keys()
        children: dict[str, list[Shard]] = {}
        for one in shards:
            for parent in one.parent_shard_ids:
                children.setdefault(parent, []).append(one)
        for shard in shards:
            after = begins.get(shard.shard_id, self.after[stream])
            upto = (upto_shards or {}).get(shard.shard_id)
            listed_children = children.get(shard.shard_id, [])
            # LATEST, up to now, is empty.
            if shard.shard_id in past or after.is_shard_end or is_empty(after, self.before_micros):
                if after_shards is None or upto_shards is not None or shard.is_covered_by(listed_children):
                    continue
                # A list may show children late, and nothing else leads to them.
                after = ShardPosition.shard_end()
            if upto_shards is not None and upto is None and shard.shard_id not in whole:
                continue
            if _is_nothing(stream, shard.shard_id, after, upto):
                continue
            # An offset of a checkpoint has a time where the query began at one and has read nothing since.
            end_millis = None if upto is None else upto.timestamp_millis
            yield BoundedShard(
                stream,
                shard.shard_id,
                after,
                self.before_micros if end_millis is None else end_millis * 1000,
                upto.sequence_number if upto is not None else None,
                keys.of(shard.shard_id),
                self.planned_micros // 1000,
                with_children=upto_shards is None,
                listed_children=tuple(one.shard_id for one in listed_children),
                is_open=shard.is_open and not listed_children,
            )


def _with_descendants(
    named_shards: Mapping[str, ShardPosition], shards: Sequence[Shard], before_micros: int | None
) -> dict[str, ShardPosition]:
    """The named shards, and those that came of shards that are at times: these may have ended before their time.

    What begins where the read ends, as at LATEST, is at its own end: what came of it is read from its beginning.
    """
    begins, listed = dict(named_shards), {one.shard_id for one in shards}
    # Kinesis numbers shards as they are made: parents come first.
    for shard in sorted(shards, key=lambda one: one.shard_id):
        parents = [begins.get(one) for one in shard.parent_shard_ids if one in begins or one in listed]
        times = [
            one.timestamp_millis
            for one in parents
            if one is not None and one.timestamp_millis is not None and not is_empty(one, before_micros)
        ]
        if shard.shard_id not in begins and times and len(times) == len(parents):
            begins[shard.shard_id] = ShardPosition.at_timestamp(min(times))
    return begins


def is_empty(after: ShardPosition, before_micros: int | None) -> bool:
    """Whether a shard's time ends before it begins: Kinesis refuses a beginning that its clock has not reached yet."""
    begin = after.timestamp_millis
    return begin is not None and before_micros is not None and before_micros <= begin * 1000


def _is_nothing(stream: str, shard_id: str, after: ShardPosition, upto: ShardPosition | None) -> bool:
    if upto is None or upto.is_shard_end:
        return False
    if upto == ShardPosition.trim_horizon():
        return True
    if upto.type is not after.type:
        return False  # a time and a sequence number cannot be compared
    end, begin = (int(one.sequence_number or one.timestamp_millis or 0) for one in (upto, after))
    if end < begin:
        raise OptionError.contradictory(
            "initialPosition",
            "endingPosition",
            f"{stream}/{shard_id} would end at {upto}, before it begins, at {after}",
        )
    return end == begin


def _check_listed(
    stream: str,
    shards: Sequence[Shard],
    after_shards: Mapping[str, ShardPosition],
    upto_shards: Mapping[str, ShardPosition],
    *,
    fail_on_data_loss: bool,
) -> None:
    listed = {one.shard_id for one in shards}
    for named_shards, is_start in ((after_shards, True), (upto_shards, False)):
        for shard_id, position in named_shards.items():
            # Nothing is missing of one that was read to its end.
            if shard_id in listed or (is_start and position.is_shard_end):
                continue
            lost = DataLossError(
                stream=stream,
                shard_id=shard_id,
                after=str(position if is_start else after_shards.get(shard_id, "its oldest record")),
                upto="its end" if is_start else str(position),
                reason="the stream does not list the shard: its records have expired, or it was never there",
            )
            if fail_on_data_loss:
                raise lost
            _log.warning("%s", lost)


def _after(
    session: AwsSession, options: KinesisOptions, start: PositionOption | None, default_end_micros: int | None
) -> ShardPosition:
    """Where shards begin that are not named."""
    if start is None or start.shards is not None or start.type is PositionOptionType.TRIM_HORIZON:
        return ShardPosition.trim_horizon()
    if start.type is PositionOptionType.LATEST:
        # Nothing, unless the end is in the future.
        return ShardPosition.at_timestamp(_latest_millis(session, options, default_end_micros))
    # A millisecond that it cuts is left out: records arrive at whole milliseconds.
    return ShardPosition.at_timestamp(-(-_micros(session, options, start, 0) // 1000))


def _latest_millis(session: AwsSession, options: KinesisOptions, default_end_micros: int | None) -> int:
    return latest_millis(session, options) if default_end_micros is None else default_end_micros // 1000


def _micros(session: AwsSession, options: KinesisOptions, position: PositionOption, now_micros: int) -> int:
    if position.type is PositionOptionType.SEAM:
        return seam_of(session, options, position) * 1000
    return now_micros if position.timestamp is None else epoch_micros(position.timestamp)


def divide_by_time(
    shards: Sequence[BoundedShard], least: int, now_micros: int, retention_micros: Mapping[str, int]
) -> list[BoundedShard]:
    """The shards in at least `least` parts, each a time range of its shard; ended shards, and those after a sequence
    number, stay whole.

    A part ends before the first record that arrived at a time or later, and the next begins with that one: together
    they are the shard, once, whether or not its arrival times ever go back.

    Args:
        shards: What is read.
        least: How many parts there should be.
        now_micros: The time of planning, in microseconds since 1970.
        retention_micros: By stream, how long it keeps records: older ones need no part.
    """
    each = -(-least // max(1, len(shards)))
    return [part for shard in shards for part in _parts(shard, each, now_micros, retention_micros[shard.stream_name])]


def _parts(shard: BoundedShard, count: int, now_micros: int, retention_micros: int) -> Iterator[BoundedShard]:
    begin = max((shard.after.timestamp_millis or 0) * 1000, now_micros - retention_micros)
    end = min(now_micros, now_micros if shard.before_micros is None else shard.before_micros)
    step = (end - begin) // count // 1000
    is_timeless = shard.after.sequence_number is not None or shard.after.is_shard_end
    if is_timeless or step < 1:
        yield shard
        return
    cuts = [begin // 1000 + step * number for number in range(1, count)]
    starts = [shard.after, *(ShardPosition.at_timestamp(cut) for cut in cuts)]
    ends = [*(cut * 1000 for cut in cuts), shard.before_micros]
    for number, (after, before) in enumerate(zip(starts, ends, strict=True), 1):
        is_last = number == count
        yield replace(shard, after=after, before_micros=before, with_children=is_last and shard.with_children)


def spread(parts: Sequence[BoundedShard], count: int) -> list[tuple[BoundedShard, ...]]:
    """The parts in `count` partitions.

    Whole shards in turn, as closed ones stand together and may hold little. Where shards are divided, one part behind
    the other: the times of a shard are then in order from one partition to the next.
    """
    if len({(one.stream_name, one.shard_id) for one in parts}) == len(parts):
        return [tuple(parts[first::count]) for first in range(count)]
    return [tuple(parts[begin:end]) for begin, end in pairwise(len(parts) * n // count for n in range(count + 1))]
