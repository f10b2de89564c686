"""The account: streams by name, subscriptions by consumer and shard."""

from __future__ import annotations

import re
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any

from penstock.emulator._config import Conduct
from penstock.emulator._faults import FaultPlan
from penstock.emulator._state.positions import TokenSealer
from penstock.emulator._state.quotas import Quotas
from penstock.emulator._state.stream import Former, Stream
from penstock.emulator._state.subscription import Subscription
from penstock.emulator.errors import in_use, invalid_argument, not_found

if TYPE_CHECKING:
    from penstock.emulator._config import Behaviour, EmulatorConfig
    from penstock.emulator._state.shard import Shard
    from penstock.emulator._state.stream import Consumer

_CONSUMER_ARN = re.compile(r"(?P<stream>arn:.+:stream/[^/]+)/consumer/(?P<name>[^/:]+):\d+")


class Kinesis:
    """The state of an emulated account, without I/O: time comes in with every call.

    Not safe for threads: one event loop owns it.
    """

    def __init__(self, config: EmulatorConfig, *, random: Random | None = None) -> None:
        self.config = config
        self.region = config.region
        """Region of the call that is being answered: streams that it creates have it in their ARNs."""
        self.seed = config.seed if config.seed is not None else SystemRandom().getrandbits(32)
        self.random = random or Random(self.seed)
        self.faults = FaultPlan(self.seed)
        self.tokens = TokenSealer(self.random)
        self.conduct = Conduct(config.behaviour, self.seed)
        self.streams: dict[str, Stream] = {}
        self.quotas = Quotas(config, self.streams, self.tokens)
        self._former: dict[str, Former] = {}
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._last_epoch = 0

    @property
    def behaviour(self) -> Behaviour:
        """What is done where Kinesis leaves things open; may be set at any time, on the loop that owns this."""
        return self.conduct.behaviour

    @behaviour.setter
    def behaviour(self, behaviour: Behaviour) -> None:
        self.conduct.behaviour = behaviour

    def new_epoch(self, now: float) -> int:
        """A second in which no shard was created before; runs ahead of the clock when there are many."""
        self._last_epoch = max(int(now), self._last_epoch + 1)
        return self._last_epoch

    def reset(self) -> None:
        """Forget all streams at once; subscriptions end as if their consumers were deleted."""
        for subscription in self._subscriptions.values():
            subscription.fail(not_found(f"Consumer {subscription.consumer_arn} not found."))
        self._subscriptions.clear()
        for stream in list(self.streams.values()):
            self._forget(stream)

    def settle(self, now: float) -> None:
        """Finish the deletions that are due, and trim what is older than the retention."""
        for stream in list(self.streams.values()):
            stream.trim(now)
            if stream.deleted_at is not None and now >= stream.deleted_at:
                self._forget(stream)
            elif stream.consumers:
                stream.forget_deleted_consumers(now)

    def _forget(self, stream: Stream) -> None:
        del self.streams[stream.name]
        self._former[stream.name] = stream.as_former()

    # Streams

    def create_stream(
        self, name: str, shard_count: int, *, now: float, mode: str = "PROVISIONED", max_record_bytes: int | None = None
    ) -> Stream:
        """CreateStream.

        Raises:
            KinesisError: ResourceInUseException where the name is taken.
        """
        if name in self.streams:
            raise in_use(f"Stream {name} under account {self.config.account_id} already exists.")
        stream = Stream(
            name=name,
            shard_count=shard_count,
            mode=mode,
            max_record_bytes=max_record_bytes or self.config.max_record_bytes,
            region=self.region,
            config=self.config,
            conduct=self.conduct,
            new_epoch=self.new_epoch,
            now=now,
            former=self._former.get(name),
        )
        self.streams[name] = stream
        return stream

    def find_stream(self, params: dict[str, Any]) -> Stream:
        """The stream that a request names by StreamARN, StreamName or both.

        Raises:
            KinesisError: ResourceNotFoundException, or InvalidArgumentException where none is named.
        """
        name, arn = params.get("StreamName"), params.get("StreamARN")
        if name is None and arn is None:
            raise invalid_argument("Either StreamARN or StreamName must be specified.")
        if name is None:
            assert arn is not None
            name = arn.rpartition(":stream/")[2]
        stream = self.streams.get(name)
        if stream is None:
            raise not_found(f"Stream {name} under account {self.config.account_id} not found.")
        if arn is not None and arn != stream.arn:
            raise not_found(f"Stream {arn} not found.")
        return stream

    def delete_stream(self, stream: Stream, *, now: float) -> None:
        """DeleteStream: the stream is DELETING, its consumers go with it, its subscriptions end."""
        stream.deleted_at = now + self.config.stream_deletion_delay.total_seconds()
        for consumer in list(stream.consumers.values()):
            self.deregister(consumer, now=now)
        self.settle(now)

    # Consumers

    def find_consumer(self, params: dict[str, Any]) -> Consumer:
        """The consumer that a request names by ConsumerARN, or by StreamARN and ConsumerName.

        Raises:
            KinesisError: ResourceNotFoundException, or InvalidArgumentException where none is named.
        """
        arn = params.get("ConsumerARN")
        if arn is None:
            if params.get("StreamARN") is None or params.get("ConsumerName") is None:
                raise invalid_argument("Either ConsumerARN, or both StreamARN and ConsumerName must be specified.")
            return self.find_stream({"StreamARN": params["StreamARN"]}).consumer(params["ConsumerName"])
        match = _CONSUMER_ARN.fullmatch(arn)
        stream = self.streams.get(match["stream"].rpartition(":stream/")[2]) if match else None
        consumer = stream.consumers.get(match["name"]) if stream and match else None
        if consumer is None or consumer.arn != arn:
            raise not_found(f"Consumer {arn} not found.")
        return consumer

    def stream_of(self, consumer: Consumer) -> Stream:
        """The stream that a consumer is registered with."""
        return self.find_stream({"StreamARN": consumer.stream_arn})

    def deregister(self, consumer: Consumer, *, now: float) -> None:
        """DeregisterStreamConsumer: the consumer is DELETING, its subscriptions end."""
        consumer.deleted_at = now + self.config.consumer_deletion_delay.total_seconds()
        for key, subscription in list(self._subscriptions.items()):
            if subscription.consumer_arn == consumer.arn:
                subscription.fail(not_found(f"Consumer {consumer.arn} not found."))
                del self._subscriptions[key]
        self.settle(now)

    # Subscriptions

    @property
    def open_subscriptions(self) -> int:
        """How many subscriptions are under way."""
        return sum(not subscription.ended for subscription in self._subscriptions.values())

    def subscribe(self, consumer: Consumer, shard: Shard, position: int, *, now: float) -> Subscription:
        """Open a subscription, and end the one that it takes over.

        Raises:
            KinesisError: ResourceInUseException before the consumer is ACTIVE, and within the resubscribe interval of
                the last success for the same consumer and shard, whether that subscription still lives or not.
        """
        stream = self.stream_of(consumer)
        key = (consumer.arn, shard.id)
        taken = in_use(
            f"Another active subscription exists for this consumer: "
            f"{self.config.account_id}:{stream.name}:{shard.id}:{consumer.name}"
        )
        previous = self._subscriptions.get(key)
        if previous is not None and now - previous.started < self.config.resubscribe_interval.total_seconds():
            raise taken
        self.quotas.admit("SubscribeToShard", {"ConsumerARN": consumer.arn, "ShardId": shard.id}, now)
        if consumer.status(now) != "ACTIVE":
            raise in_use(
                f"Consumer {consumer.name} with creation timestamp {consumer.created} under stream: {stream.name} , "
                f"account {self.config.account_id} is not in ACTIVE status."
            )
        if previous is not None:
            previous.fail(taken)
        subscription = Subscription(
            shard=shard,
            consumer_arn=consumer.arn,
            position=position,
            config=self.config,
            conduct=self.conduct,
            now=now,
        )
        self._subscriptions[key] = subscription
        return subscription
