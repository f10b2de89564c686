"""What Kinesis leaves open: the switches, the profiles `kind` and `hostile`, and the chance behind them."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from penstock.emulator.errors import EmulatorConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

PROFILES = ("kind", "hostile")
"""The names that `Behaviour.profile` takes."""

_ZERO = timedelta(0)


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """Answers to the questions that Amazon's documentation leaves open, or that servers answer differently.

    The defaults are the profile `kind`. A client is correct only if it loses no record, and repeats none, with every
    field on either side. Durations are on the emulator's clock. Random choices follow from `seed` and the order of
    calls.

    Raises:
        EmulatorConfigError: a field is out of range; the error names it.
    """

    read_on_from_trimmed: bool = False
    """GetShardIterator and SubscribeToShard with a sequence number older than the retention: InvalidArgumentException,
    or reading starts with the oldest record that is left."""
    refuse_expired_ahead: bool = False
    """Records that expire ahead of an open iterator or subscription: skipped silently, or GetRecords answers
    ExpiredIteratorException and the subscription ends. Skipping is the unkind side, and the one of both profiles."""
    refuse_continuations: bool = False
    """GetShardIterator with a `ContinuationSequenceNumber` that no record has: accepted, or InvalidArgumentException.
    SubscribeToShard accepts it always."""
    arrival_jitter: timedelta = _ZERO
    """How far `ApproximateArrivalTimestamp` may go back within a shard; 0: never. Retention and AT_TIMESTAMP follow the
    exact times, which are never earlier than those shown."""
    late_children: timedelta = _ZERO
    """How long after a reshard ListShards and DescribeStream show the parents as open and the children not at all; 0:
    not at all. Each reshard takes between half of it and all of it. The children can be read from the start."""
    unlist_expired_early: bool = False
    """When a closed shard leaves ListShards and DescribeStream: once it was closed longer ago than the retention, or
    already when its last record has expired. It can be read until the former either way."""
    get_records_lag: timedelta = _ZERO
    """How far GetRecords may be behind SubscribeToShard, with `MillisBehindLatest` 0 beside records that are there; 0:
    never. Every other call, on average, is not behind. No record is skipped: a later call gives it."""
    shard_end_without_event: bool = False
    """The end of a closed shard's subscription: a last event with `ChildShards`, or the stream ends without one, and
    so does each new subscription. GetRecords names the children either way."""
    subscriptions_outlive_shards: bool = False
    """The end of a closed shard's subscription: a last event with `ChildShards`, or the subscription stays open and
    sends empty events with the same `ContinuationSequenceNumber` and `MillisBehindLatest` 0, and so does each new
    subscription. GetRecords names the children either way. With `shard_end_without_event` too, each shard does one of
    the two, by chance."""
    refuse_future_timestamps: bool = False
    """AT_TIMESTAMP up to 5 s in the future: accepted, or InvalidArgumentException."""
    sequence_numbers_without_time: bool = False
    """Whether sequence numbers hold no arrival time. Decided for each shard when it is created."""
    sequence_numbers_start_over: bool = False
    """The first shards of a stream with the name of a deleted one: sequence numbers above all earlier ones, or the
    same ones again."""
    accept_deleted_numbers: bool = False
    """A sequence number of the deleted stream, given to the stream that has its name now: InvalidArgumentException, or
    reading starts at the place where the number would be in the order of sequence numbers."""
    page_span: timedelta | None = None
    """How much time one GetRecords call looks through, so that a gap takes many pages without records; None: all."""
    empty_answers: int = 0
    """How many answers of GetRecords have no records although there are more, or although the shard has ended. They
    come after each GetShardIterator, after each answer with records, and before the null iterator of a closed shard.
    On a closed shard they have `MillisBehindLatest` 0, on an open shard the true value. DynamoDB Streams, which has no
    `MillisBehindLatest`, also gives them where an open shard has no more records."""
    seed: int | None = None
    """Seed of the random choices; None: the `seed` of the emulator."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, timedelta) and value < _ZERO:
                raise EmulatorConfigError(option=item.name, reason="must not be negative")
        if self.empty_answers < 0:
            raise EmulatorConfigError(option="empty_answers", reason="must not be negative")
        if self.page_span == _ZERO:
            raise EmulatorConfigError(option="page_span", reason="must be positive, or None for no limit")

    @classmethod
    def from_environment(cls, *, profile: str | None = None, seed: int | None = None) -> Behaviour:
        """Give the profile that `PENSTOCK_EMULATOR_PROFILE` names, or `kind`; `PENSTOCK_EMULATOR_SEED` seeds it.

        Args:
            profile: in place of the first.
            seed: in place of the second.

        Raises:
            EmulatorConfigError: not a profile, or not a whole number; the error names the variable.
        """
        text = os.environ.get("PENSTOCK_EMULATOR_SEED")
        if seed is None and text:
            try:
                seed = int(text)
            except ValueError:
                reason = f"must be a whole number, not {text!r}"
                raise EmulatorConfigError(option="PENSTOCK_EMULATOR_SEED", reason=reason) from None
        name = profile or os.environ.get("PENSTOCK_EMULATOR_PROFILE") or "kind"
        try:
            return cls.profile(name, seed=seed)
        except EmulatorConfigError as error:
            if profile is not None:
                raise
            raise EmulatorConfigError(option="PENSTOCK_EMULATOR_PROFILE", reason=error.reason) from None

    @classmethod
    def kind(cls, *, seed: int | None = None) -> Behaviour:
        """The friendly answer to every question; the default."""
        return cls(seed=seed)

    @classmethod
    def hostile(cls, *, seed: int | None = None) -> Behaviour:
        """The unkind answer to every question at once."""
        return cls(
            read_on_from_trimmed=True,
            refuse_continuations=True,
            arrival_jitter=timedelta(seconds=1),
            late_children=timedelta(seconds=5),
            unlist_expired_early=True,
            get_records_lag=timedelta(seconds=1),
            shard_end_without_event=True,
            subscriptions_outlive_shards=True,
            refuse_future_timestamps=True,
            sequence_numbers_without_time=True,
            sequence_numbers_start_over=True,
            accept_deleted_numbers=True,
            page_span=timedelta(minutes=30),
            seed=seed,
        )

    @classmethod
    def profile(cls, name: str, *, seed: int | None = None) -> Behaviour:
        """The profile of this name, one of `kind` and `hostile`.

        Raises:
            EmulatorConfigError: no profile has this name.
        """
        match name:
            case "kind":
                return cls.kind(seed=seed)
            case "hostile":
                return cls.hostile(seed=seed)
        raise EmulatorConfigError(option="profile", reason=f"must be one of {', '.join(PROFILES)}")

    @property
    def profile_name(self) -> str:
        """`kind`, `hostile`, or `custom` for anything else; the seed does not matter."""
        names = (name for name in PROFILES if replace(self, seed=None) == Behaviour.profile(name))
        return next(names, "custom")

    def as_dict(self) -> dict[str, bool | float | int | None]:
        """The fields as JSON has them: durations in seconds."""
        values = ((item.name, getattr(self, item.name)) for item in fields(self))
        return {name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in values}

    def changed(self, values: Mapping[str, Any]) -> Behaviour:
        """A copy with some fields changed, given as in `as_dict`.

        Raises:
            EmulatorConfigError: a field is unknown, or its value has the wrong type or is out of range.
        """
        kinds = {item.name: str(item.type) for item in fields(self)}
        changes: dict[str, Any] = {}
        for name, value in values.items():
            if name not in kinds:
                raise EmulatorConfigError(option=name, reason=f"unknown; there are {', '.join(kinds)}")
            changes[name] = _converted(name, kinds[name], value)
        return replace(self, **changes)


def _converted(name: str, kind: str, value: Any) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is None and kind.endswith("None"):
        return None
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind.startswith("int") and is_number and isinstance(value, int):
        return value
    if kind.startswith("timedelta") and is_number:
        try:
            return timedelta(seconds=value)
        except (OverflowError, ValueError) as error:
            raise EmulatorConfigError(option=name, reason="must be a number of seconds") from error
    wanted = {"bool": "true or false", "int": "an integer", "int | None": "an integer"}.get(kind, "a number of seconds")
    raise EmulatorConfigError(option=name, reason=f"must be {wanted}")


class Conduct:
    """The behaviour in force, which may change at any time, and its chance."""

    def __init__(self, behaviour: Behaviour, seed: int) -> None:
        self._default_seed = seed
        self._draws: Counter[tuple[str, ...]] = Counter()
        self._behaviour = behaviour

    @property
    def behaviour(self) -> Behaviour:
        """The behaviour in force; setting it begins the random choices anew."""
        return self._behaviour

    @behaviour.setter
    def behaviour(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._draws.clear()

    @property
    def seed(self) -> int:
        """The seed in force."""
        return self._default_seed if self._behaviour.seed is None else self._behaviour.seed

    def draw(self, *key: str) -> float:
        """A number from 0 up to 1, not included; always the same for the same key."""
        digest = blake2b("\0".join((str(self.seed), *key)).encode(), digest_size=8).digest()
        # 53 bits: what a float can hold, or the greatest would become 1.
        return (int.from_bytes(digest) >> 11) / (1 << 53)

    def next_draw(self, *key: str) -> float:
        """A new number with each call, from a sequence of the key's own."""
        self._draws[key] += 1
        return self.draw(*key, str(self._draws[key]))
