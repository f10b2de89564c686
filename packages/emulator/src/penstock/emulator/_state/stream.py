"""One stream: routing, resharding, consumers."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.emulator._state.sequence import HashKeyRange, plan_uniform_scaling, uniform_ranges
from penstock.emulator._state.shard import Shard
from penstock.emulator.errors import in_use, invalid_argument, limit_exceeded, not_found

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.emulator._config import Conduct, EmulatorConfig


@dataclass(slots=True)
class Consumer:
    """A consumer and its life: CREATING until `active_at`, then ACTIVE, DELETING once `deleted_at` is known."""

    name: str
    arn: str
    stream_arn: str
    created: int
    """Seconds since the epoch; part of the ARN, and therefore unique among consumers of the same name."""
    active_at: float
    deleted_at: float | None = None
    """When the consumer, being deleted, is gone."""
    tags: dict[str, str] = field(default_factory=dict)

    def status(self, now: float) -> str:
        """CREATING, ACTIVE or DELETING."""
        if self.deleted_at is not None:
            return "DELETING"
        return "ACTIVE" if now >= self.active_at else "CREATING"

    def as_dict(self, now: float) -> dict[str, Any]:
        """The consumer as RegisterStreamConsumer and ListStreamConsumers describe it."""
        return {
            "ConsumerName": self.name,
            "ConsumerARN": self.arn,
            "ConsumerStatus": self.status(now),
            "ConsumerCreationTimestamp": self.created,
        }


_TRIM_INTERVAL_SECONDS = 1.0
_DAY_SECONDS = 86_400


class Former(NamedTuple):
    """What is remembered of a deleted stream, for the next one with its name."""

    created: int
    """The second of its StreamCreationTimestamp."""
    epoch: int
    """What the sequence numbers of its first shards began with."""
    consumer_created: int
    """The last second in the ARN of one of its consumers; 0 if it had none."""


class ListedShard(NamedTuple):
    """A shard as ListShards shows it."""

    shard: Shard
    closed: float | None
    """When it was closed; None where it is open, or still looks open."""

    def description(self) -> dict[str, Any]:
        """The shard's entry in the list."""
        return self.shard.description(as_open=self.closed is None)


class Stream:
    """A stream's shards in order of creation, and its consumers by name.

    With `former`, a deleted stream of the same name, it has another StreamCreationTimestamp and other consumer ARNs
    than that one; its sequence numbers start over if the behaviour says so.
    """

    def __init__(
        self,
        *,
        name: str,
        shard_count: int,
        mode: str,
        max_record_bytes: int,
        region: str,
        config: EmulatorConfig,
        conduct: Conduct,
        new_epoch: Callable[[float], int],
        now: float,
        former: Former | None = None,
    ) -> None:
        self.name = name
        self.arn = f"arn:aws:kinesis:{region}:{config.account_id}:stream/{name}"
        # Two streams of one name differ by this time, in whole seconds.
        self.created = now if former is None else max(now, former.created + 1)
        self.mode = mode
        self.max_record_bytes = max_record_bytes
        self.consumers: dict[str, Consumer] = {}
        self.deleted_at: float | None = None
        self.retention_seconds = config.retention.total_seconds()
        self.trimmed_before = now
        """The time from which on records are kept, as of the last trimming; never goes back."""
        self.tags: dict[str, str] = {}
        self.encryption_key: str | None = None
        self.shard_level_metrics: list[str] = []
        self.changes: dict[str, list[float]] = {}
        """When operations with a daily limit succeeded, by their name; of the last 24 hours."""
        self._config = config
        self._conduct = conduct
        self._new_epoch = new_epoch
        self._active_at = now + config.stream_creation_delay.total_seconds()
        self._updated_at = now
        self._last_consumer_created: dict[str, int] = {}
        self._consumers_after = former.consumer_created if former is not None else 0
        starts_over = conduct.behaviour.sequence_numbers_start_over
        epoch = former.epoch if former is not None and starts_over else new_epoch(now)
        self.shards = [
            Shard(index=index, hash_keys=hash_keys, epoch=epoch, now=now, config=config, conduct=conduct)
            for index, hash_keys in enumerate(uniform_ranges(shard_count))
        ]
        self._by_id = {shard.id: shard for shard in self.shards}
        self._route()

    # Status

    def status(self, now: float) -> str:
        """CREATING, ACTIVE, UPDATING or DELETING."""
        if self.deleted_at is not None:
            return "DELETING"
        if now < self._active_at:
            return "CREATING"
        return "UPDATING" if now < self._updated_at else "ACTIVE"

    def require_active(self, now: float) -> None:
        """Refuse control operations on a stream that is not ACTIVE."""
        status = self.status(now)
        if status != "ACTIVE":
            raise in_use(f"Stream {self._place} not ACTIVE, instead in state {status}")

    def require_readable(self, now: float) -> None:
        """Refuse reads and writes before the stream is there: AWS does not find it."""
        status = self.status(now)
        if status in ("CREATING", "DELETING"):
            raise not_found(f"Stream {self._place} not found, its state is {status}.")

    @property
    def _place(self) -> str:
        return f"{self.name} under account {self._config.account_id}"

    # Shards

    @property
    def open_shards(self) -> list[Shard]:
        """The shards that take records, by hash key."""
        return list(self._open)

    def shard(self, shard_id: str) -> Shard:
        """Find a shard, open or closed.

        Raises:
            KinesisError: ResourceNotFoundException.
        """
        shard = self._by_id.get(shard_id)
        if shard is None or shard.expired:
            raise not_found(f"Could not find shard {shard_id} in stream {self._place}.")
        return shard

    @property
    def known_shards(self) -> list[Shard]:
        """The shards, open or closed, that are not expired, in order of creation."""
        return [shard for shard in self.shards if not shard.expired]

    def listed_shards(self, now: float) -> list[ListedShard]:
        """The shards as ListShards and DescribeStream show them; right after a reshard that may not be up to date."""
        behaviour = self._conduct.behaviour
        delay = behaviour.late_children.total_seconds()
        # Arrival times are whole milliseconds: a record of the stream's first one has not expired.
        horizon = math.floor(self.horizon(now) * 1000) / 1000
        hidden: set[Shard] = set()
        for shard in self.shards if delay else ():
            # Shards with the same parent belong to the same reshard, and come together.
            if shard.parents and (
                any(parent in hidden for parent in shard.parents)
                or now
                < shard.created + delay * (1 + self._conduct.draw("children", self.name, shard.parents[0].id)) / 2
            ):
                hidden.add(shard)
        listed: list[ListedShard] = []
        for shard in self.known_shards:
            if shard in hidden:
                continue
            closed = None if any(child in hidden for child in shard.children) else shard.closed
            if closed is not None and behaviour.unlist_expired_early and shard.last_arrival < horizon:
                continue
            listed.append(ListedShard(shard, closed))
        return listed

    def shard_for(self, hash_key: int) -> Shard:
        """The open shard whose range holds `hash_key`."""
        return self._open[bisect_right(self._starts, hash_key) - 1]

    def _route(self) -> None:
        self._open = sorted((s for s in self.shards if s.is_open), key=lambda shard: shard.hash_keys.start)
        self._starts = [shard.hash_keys.start for shard in self._open]

    def _add(self, hash_keys: HashKeyRange, parents: tuple[Shard, ...], now: float) -> Shard:
        shard = Shard(
            index=len(self.shards),
            hash_keys=hash_keys,
            epoch=self._new_epoch(now),
            now=now,
            config=self._config,
            conduct=self._conduct,
            parents=parents,
        )
        self.shards.append(shard)
        self._by_id[shard.id] = shard
        return shard

    # Retention

    def horizon(self, now: float) -> float:
        """The time before which records are lost, or may be at any moment."""
        return max(self.trimmed_before, now - self.retention_seconds)

    def trim(self, now: float) -> None:
        """Forget what is older than the retention; records outlive it by a second at most."""
        horizon = now - self.retention_seconds
        if horizon - self.trimmed_before < _TRIM_INTERVAL_SECONDS:
            return
        self.trimmed_before = horizon
        for shard in self.shards:
            shard.trim(horizon)

    # Resharding

    def split(self, shard: Shard, new_starting_hash_key: int, now: float) -> None:
        """SplitShard: close `shard`, open two children that meet at the key."""
        self._require_open(shard)
        start, end = shard.hash_keys.start, shard.hash_keys.end
        if not start + 1 < new_starting_hash_key < end:
            raise invalid_argument(
                f"NewStartingHashKey {new_starting_hash_key} used in SplitShard() on shard {shard.id} in stream "
                f"{self._place} is not both greater than one plus the shard's StartingHashKey {start} and less than "
                f"the shard's EndingHashKey {end}."
            )
        children = [
            self._add(HashKeyRange(start, new_starting_hash_key - 1), (shard,), now),
            self._add(HashKeyRange(new_starting_hash_key, end), (shard,), now),
        ]
        shard.close(children, now)
        self._resharded(now)

    def merge(self, shard: Shard, adjacent: Shard, now: float) -> None:
        """MergeShards: close both, open one child over the union of their ranges."""
        self._require_open(shard)
        self._require_open(adjacent)
        low, high = sorted((shard.hash_keys, adjacent.hash_keys), key=lambda hash_keys: hash_keys.start)
        if low.end + 1 != high.start:
            raise invalid_argument(
                f"Shards {shard.id} and {adjacent.id} in stream {self._place} are not an adjacent pair of shards "
                "eligible for merging"
            )
        child = self._add(HashKeyRange(low.start, high.end), (shard, adjacent), now)
        shard.close([child], now)
        adjacent.close([child], now)
        self._resharded(now)

    def scale(self, target: int, now: float) -> None:
        """UpdateShardCount: split and merge until `target` shards of equal size are open."""
        current = len(self._open)
        counts = f"Current open shard count: {current} Target shard count: {target}"
        if target > 2 * current:
            raise limit_exceeded(
                f"UpdateShardCount cannot scale up over double your current open shard count. {counts}"
            )
        if 2 * target < current:
            raise limit_exceeded(
                f"UpdateShardCount cannot scale down below half your current open shard count. {counts}"
            )
        plan = plan_uniform_scaling([shard.hash_keys for shard in self._open], target)
        for key in plan.splits:
            self.split(self.shard_for(key), key, now)
        for key in plan.merges:
            self.merge(self.shard_for(key - 1), self.shard_for(key), now)

    def _require_open(self, shard: Shard) -> None:
        if not shard.is_open:
            raise invalid_argument(
                f"Shard {shard.id} in stream {self._place} has already been merged or split, and thus is not eligible "
                "for merging or splitting."
            )

    def _resharded(self, now: float) -> None:
        self.update(now)
        self._route()

    def record_change(self, operation: str, now: float) -> None:
        """Remember that an operation with a daily limit succeeded."""
        self.changes[operation] = [*self.recent_changes(operation, now), now]

    def recent_changes(self, operation: str, now: float) -> list[float]:
        """When an operation succeeded in the last 24 hours."""
        return [at for at in self.changes.get(operation, []) if now - at < _DAY_SECONDS]

    def update(self, now: float) -> None:
        """Be UPDATING for a while."""
        self._updated_at = now + self._config.stream_update_delay.total_seconds()

    # Consumers

    def register(self, name: str, now: float) -> Consumer:
        """RegisterStreamConsumer."""
        if name in self.consumers:
            raise in_use(
                f"Consumer {name} under stream {self.name} already exists for account {self._config.account_id}."
            )
        if not _below(len(self.consumers), self._config.consumers_per_stream):
            raise limit_exceeded(
                f"Stream {self._place} has the maximum of {self._config.consumers_per_stream} consumers."
            )
        creating = sum(consumer.status(now) == "CREATING" for consumer in self.consumers.values())
        if not _below(creating, self._config.consumers_creating_at_once):
            raise limit_exceeded(
                f"Stream {self._place} has {creating} consumers in CREATING; wait until they are ACTIVE."
            )
        # The ARNs of registrations of one name differ by their second, so two of them must not share one.
        created = max(int(now), self._last_consumer_created.get(name, self._consumers_after) + 1)
        self._last_consumer_created[name] = created
        consumer = Consumer(
            name=name,
            arn=f"{self.arn}/consumer/{name}:{created}",
            stream_arn=self.arn,
            created=created,
            active_at=now + self._config.consumer_creation_delay.total_seconds(),
        )
        self.consumers[name] = consumer
        return consumer

    def consumer(self, name: str) -> Consumer:
        """Find a consumer by name.

        Raises:
            KinesisError: ResourceNotFoundException.
        """
        consumer = self.consumers.get(name)
        if consumer is None:
            raise not_found(f"Consumer {name}, account {self._config.account_id} not found under stream {self.name}.")
        return consumer

    def as_former(self) -> Former:
        """What has to be remembered when the stream is gone."""
        consumer_created = max(self._last_consumer_created.values(), default=0)
        return Former(int(self.created), self.shards[0].epoch, max(consumer_created, self._consumers_after))

    def forget_deleted_consumers(self, now: float) -> None:
        """Drop the consumers whose deletion is over."""
        gone = [c.name for c in self.consumers.values() if c.deleted_at is not None and now >= c.deleted_at]
        for name in gone:
            del self.consumers[name]


def _below(count: int, limit: int | None) -> bool:
    return limit is None or count < limit
