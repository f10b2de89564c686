"""Faults that tests ask for, decided without I/O.

A plan holds faults in the order in which they were added. Each has its own random numbers, drawn from the plan's seed
and its own number: the same faults and the same calls in the same order fail in the same places again.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, fields
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.emulator.errors import EmulatorConfigError, KinesisError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_CALL_KINDS = frozenset({"throttle", "error", "delay", "drip", "reset", "silence"})
_EVENT_KINDS = frozenset({"stream_error", "corrupt_crc", "drip", "reset", "silence"})
_RECORD_KINDS = frozenset({"fail_records"})
KINDS = tuple(sorted(_CALL_KINDS | _EVENT_KINDS | _RECORD_KINDS))
"""The kinds of faults."""

_SUBSCRIBE = "SubscribeToShard"
_DATA_OPERATIONS = frozenset({"PutRecord", "PutRecords", "GetRecords", "GetShardIterator"})
_STATUS = {"InternalFailure": 500, "InternalFailureException": 500, "InternalServerError": 500}
_STATUS |= {"ServiceUnavailable": 503, "ServiceUnavailableException": 503}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What goes wrong, where, and how often.

    Raises:
        EmulatorConfigError: a field is out of range, or has no meaning for the kind; the error names it.
    """

    kind: str
    """One of `KINDS`."""
    operation: str | None = None
    """Only this operation; None means all that the kind can hit."""
    stream: str | None = None
    """Only the stream of this name."""
    shard: str | None = None
    """Only this shard, where the request names one itself or by its iterator; fail_records: where the record goes."""
    consumer: str | None = None
    """Only the consumer of this name or ARN."""
    probability: float = 1.0
    """How likely a call (an event, for kinds inside the event stream) that matches is hit."""
    skip: int = 0
    """How many calls (events) that match are let through first."""
    count: int | None = None
    """How many hits there are at most; None: until the fault is cleared."""
    code: str | None = None
    """The error's code; throttle, stream_error and fail_records have one of their own."""
    message: str | None = None
    """The error's text."""
    status: int | None = None
    """The HTTP status of an error; by the code unless given."""
    seconds: float = 0.0
    """How long a delay is, on the emulator's clock."""
    bytes_per_second: float = 0.0
    """How fast a drip is, on the emulator's clock."""
    applies: bool = True
    """reset and silence: whether the operation is carried out although it is not answered."""
    scope: str = "connection"
    """reset: the TCP connection, or over HTTP/2 only the "stream"."""
    share: float | None = None
    """fail_records: how likely each record of a request fails."""
    indices: tuple[int, ...] | None = None
    """fail_records: which records of a request fail, from 0."""

    def __post_init__(self) -> None:
        def require(ok: bool, option: str, reason: str) -> None:
            if not ok:
                raise EmulatorConfigError(option=option, reason=reason)

        require(self.kind in KINDS, "kind", f"must be one of {', '.join(KINDS)}, not {self.kind!r}")
        require(0 < self.probability <= 1, "probability", "must be above 0, and 1 at most")
        require(self.skip >= 0, "skip", "must not be negative")
        require(self.count is None or self.count > 0, "count", "must be at least 1")
        require(self.kind != "error" or self.code is not None, "code", "must be given for an error")
        require(self.kind != "delay" or self.seconds > 0, "seconds", "must be positive for a delay")
        require(self.kind != "drip" or self.bytes_per_second > 0, "bytes_per_second", "must be positive for a drip")
        require(self.scope in ("connection", "stream"), "scope", "must be connection or stream")
        require(self.share is None or 0 < self.share <= 1, "share", "must be above 0, and 1 at most")
        require(
            self.kind != "fail_records" or (self.share is None) != (self.indices is None),
            "share",
            "either share or indices must be given for fail_records",
        )
        if self.kind in ("stream_error", "corrupt_crc"):
            require(self.operation in (None, _SUBSCRIBE), "operation", "must be SubscribeToShard for this kind")
        if self.kind == "fail_records":
            require(self.operation in (None, "PutRecords"), "operation", "must be PutRecords for this kind")

    def error(self, operation: str) -> KinesisError:
        """The error that the fault answers an operation with."""
        code = self.code
        if code is None and self.kind == "throttle":
            throughput = operation in _DATA_OPERATIONS
            code = "ProvisionedThroughputExceededException" if throughput else "LimitExceededException"
        code = code or ("InternalFailureException" if self.kind == "stream_error" else "InternalFailure")
        default = "Rate exceeded." if self.kind == "throttle" else "Internal service failure."
        return KinesisError(code, self.message or default, status=self.status or _STATUS.get(code, 400))


@dataclass(frozen=True, slots=True)
class Target:
    """What a call is about, where the request says so."""

    operation: str
    stream: str | None = None
    shard: str | None = None
    consumer: str | None = None
    """The ARN, or the name where the request gives only that."""


class _Active:
    __slots__ = ("_random", "fault", "hits", "id", "seen")

    def __init__(self, number: int, fault: Fault, seed: int) -> None:
        self.id = f"fault-{number}"
        self.fault = fault
        self.seen = 0
        self.hits = 0
        self._random = Random(f"{seed}/{number}")

    def matches(self, target: Target) -> bool:
        fault = self.fault
        if fault.operation is not None and fault.operation != target.operation:
            return False
        if fault.stream is not None and fault.stream != target.stream:
            return False
        if fault.shard is not None and fault.shard != target.shard:
            return False
        return fault.consumer is None or (
            target.consumer is not None
            and (fault.consumer == target.consumer or f"/consumer/{fault.consumer}:" in target.consumer)
        )

    def fires(self) -> bool:
        if self.fault.count is not None and self.hits >= self.fault.count:
            return False
        self.seen += 1
        # Drawn even where it is certain: a changed `skip` must not shift what comes after.
        drawn = self._random.random()
        if self.seen <= self.fault.skip or drawn >= self.fault.probability:
            return False
        self.hits += 1
        return True

    def choose(self, count: int) -> list[int]:
        fault = self.fault
        if fault.indices is not None:
            return [index for index in fault.indices if 0 <= index < count]
        assert fault.share is not None
        return [index for index in range(count) if self._random.random() < fault.share]

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.id, "seen": self.seen, "hits": self.hits, **asdict(self.fault)}


class FaultPlan:
    """The faults of an emulator; its methods may be called from any thread."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._lock = threading.Lock()
        self._number = 0
        self._active: tuple[_Active, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._active)

    def add(self, kind: str | Fault, **options: Any) -> str:
        """Add a `Fault`, or one of a kind with these fields; returns its id.

        Raises:
            EmulatorConfigError: a field that there is not, or that is out of range.
        """
        fault = kind if isinstance(kind, Fault) else make_fault({"kind": kind, **options})
        with self._lock:
            active = _Active(self._number, fault, self.seed)
            self._number += 1
            self._active += (active,)
        return active.id

    def clear(self, fault_id: str | None = None) -> bool:
        """Take one fault back, or all of them (the next gets number 0 again); returns whether there was one."""
        with self._lock:
            kept = tuple(active for active in self._active if fault_id is not None and active.id != fault_id)
            found = len(kept) < len(self._active)
            self._active = kept
            if fault_id is None:
                self._number = 0
        return found

    def list(self) -> Sequence[dict[str, Any]]:
        """The faults in order, with their fields, `id`, `seen` (calls or events that matched) and `hits`."""
        return [active.as_dict() for active in self._active]

    def on_call(self, target: Target) -> Sequence[Fault]:
        """The faults that hit a call, before it is carried out."""
        kinds = _CALL_KINDS
        if target.operation == _SUBSCRIBE:
            # What these do to a subscription, they do to its events.
            kinds = kinds - _EVENT_KINDS
        return self._fire(kinds, target)

    def on_event(self, target: Target) -> Sequence[Fault]:
        """The faults that hit the event that a subscription is about to send."""
        return self._fire(_EVENT_KINDS, target)

    def on_records(self, stream: str, shards: Sequence[str]) -> dict[int, KinesisError]:
        """The records of a PutRecords that fail, by index; `shards` says where each would go."""
        refused: dict[int, KinesisError] = {}
        with self._lock:
            for active in self._active:
                fault = active.fault
                if fault.kind not in _RECORD_KINDS or fault.stream not in (None, stream):
                    continue
                there = {index for index, shard in enumerate(shards) if fault.shard in (None, shard)}
                if there and active.fires():
                    chosen = there.intersection(active.choose(len(shards)))
                    refused |= {index: fault.error("PutRecords") for index in chosen}
        return refused

    def _fire(self, kinds: Iterable[str], target: Target) -> Sequence[Fault]:
        if not self._active:
            return []
        with self._lock:
            return [
                active.fault
                for active in self._active
                if active.fault.kind in kinds and active.matches(target) and active.fires()
            ]


def make_fault(options: dict[str, Any]) -> Fault:
    """Build a fault from plain values, such as JSON gives them.

    Raises:
        EmulatorConfigError: a field that there is not, of the wrong type, or out of range.
    """
    known = {field.name for field in fields(Fault)}
    for name in options:
        if name not in known:
            reason = f"is not a field of a fault; the fields are {', '.join(sorted(known))}"
            raise EmulatorConfigError(option=name, reason=reason)
    if "kind" not in options:
        raise EmulatorConfigError(option="kind", reason="must be given")
    values = dict(options)
    if isinstance(values.get("indices"), list):
        values["indices"] = tuple(values["indices"])
    try:
        return Fault(**values)
    except TypeError as error:
        raise EmulatorConfigError(option="fault", reason=f"a field has the wrong type: {error}") from error
