"""For tests of code that uses this package: a clock to move, a store, and the consumer calls of Kinesis."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.aws import AwsServiceError
from penstock.registration._lease import rules as lease_rules
from penstock.registration._lease.record import ConsumerRecord, Renewal
from penstock.registration._testing_servers import DynamoDbClients, Wire, WireCall, running_dynamodb, running_wire

__all__ = [
    "DynamoDbClients",
    "FakeKinesis",
    "InMemoryLeaseStore",
    "ManualClock",
    "Wire",
    "WireCall",
    "running_dynamodb",
    "running_wire",
]


class ManualClock:
    """A clock that stands still until it is moved; its `sleep` moves it and returns at once."""

    def __init__(self, start: float = 1_750_000_000.0) -> None:
        self.now = start
        self.slept: list[float] = []

    def __call__(self) -> float:
        """The time, in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock; a negative number is a clock that is set back."""
        self.now += seconds

    async def sleep(self, seconds: float) -> None:
        """What code under test gets in place of `asyncio.sleep`."""
        self.slept.append(seconds)
        self.now += seconds


class InMemoryLeaseStore:
    """A LeaseStore that forgets everything with its object."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], ConsumerRecord] = {}

    async def get(self, stream_arn: str, consumer_name: str) -> ConsumerRecord | None:
        """See LeaseStore."""
        return self._records.get((stream_arn, consumer_name))

    async def renew(self, renewal: Renewal) -> float | None:
        """See LeaseStore."""
        stored = self._records.get((renewal.stream_arn, renewal.consumer_name))
        if stored is None:
            return None
        renewed = lease_rules.renew(stored, job_id=renewal.job_id, fencing_token=renewal.fencing_token, now=renewal.at)
        if renewed is None or renewed.holding is None:
            return None
        await self.write(renewed)
        return renewed.holding.time_to_live_seconds

    async def write(self, record: ConsumerRecord) -> bool:
        """See LeaseStore."""
        stored = self._records.get(record.key)
        if record.version != (0 if stored is None else stored.version):
            return False
        self._records[record.key] = replace(record, version=record.version + 1)
        return True

    async def list(self) -> list[ConsumerRecord]:
        """See LeaseStore."""
        return sorted(self._records.values(), key=lambda record: record.key)

    async def close(self) -> None:
        """See LeaseStore."""


@dataclass
class _FakeConsumer:
    arn: str
    status: str
    looks_left: int


@dataclass
class FakeKinesis:
    """A client of Kinesis: the calls that concern stream consumers, in memory.

    A consumer is CREATING, and later DELETING, for `looks` descriptions. Errors put into `errors[operation]` are raised
    by the next calls, one each; `after[operation]` is called once, after the next call took effect and before it is
    answered: what it raises is what the caller sees.
    """

    streams: tuple[str, ...] = ("flights",)
    looks: int = 1
    limit: int = 20
    open_shards: int = 4
    stream_mode: str = "PROVISIONED"
    account_id: str = "123456789012"
    region: str = "eu-west-1"
    calls: list[str] = field(default_factory=list)
    """Operations in the order of their arrival."""
    errors: dict[str, deque[BaseException]] = field(default_factory=dict)
    after: dict[str, Callable[[], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._consumers: dict[tuple[str, str], _FakeConsumer] = {}
        self._created = 0
        self._lock = threading.RLock()

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """Make a call in a thread, so that `after` may block."""
        answer: dict[str, Any] = await asyncio.to_thread(getattr(self, operation), **parameters)
        return answer

    async def close(self) -> None:
        """Nothing is open."""

    def fail(self, operation: str, *codes: str) -> None:
        """Let the next calls of the operation fail with these codes."""
        queue = self.errors.setdefault(operation, deque())
        queue.extend(_error(code, operation) for code in codes)

    def register_outside(self, stream_name: str, consumer_name: str) -> str:
        """Register as somebody else, ACTIVE at once. Returns the ARN."""
        with self._lock:
            consumer = self._create(self._stream_arn(stream_name), consumer_name)
            consumer.status = "ACTIVE"
            return consumer.arn

    def delete_outside(self, stream_name: str, consumer_name: str) -> None:
        """Deregister as somebody else, gone at once."""
        with self._lock:
            del self._consumers[self._stream_arn(stream_name), consumer_name]

    def names(self) -> set[str]:
        """Names of all consumers that exist, in any state."""
        with self._lock:
            return {name for _, name in self._consumers}

    def describe_stream_summary(self, *, StreamName: str = "", StreamARN: str = "") -> dict[str, Any]:  # noqa: D102
        with self._called("describe_stream_summary"):
            arns = [self._stream_arn(name) for name in self.streams]
            arn = StreamARN or self._stream_arn(StreamName)
            if arn not in arns:
                raise _error("ResourceNotFoundException", "DescribeStreamSummary")
            return {
                "StreamDescriptionSummary": {
                    "StreamARN": arn,
                    "OpenShardCount": self.open_shards,
                    "StreamModeDetails": {"StreamMode": self.stream_mode},
                }
            }

    def register_stream_consumer(self, *, StreamARN: str, ConsumerName: str) -> dict[str, Any]:  # noqa: D102
        with self._called("register_stream_consumer"):
            if (StreamARN, ConsumerName) in self._consumers:
                raise _error("ResourceInUseException", "RegisterStreamConsumer")
            if len(self._consumers) >= self.limit:
                raise _error("LimitExceededException", "RegisterStreamConsumer")
            return {"Consumer": self._description(ConsumerName, self._create(StreamARN, ConsumerName))}

    def describe_stream_consumer(  # noqa: D102
        self, *, StreamARN: str = "", ConsumerName: str = "", ConsumerARN: str = ""
    ) -> dict[str, Any]:
        with self._called("describe_stream_consumer"):
            key, consumer = self._find(StreamARN, ConsumerName, ConsumerARN)
            answer = {"ConsumerDescription": self._description(key[1], consumer)}
            consumer.looks_left -= 1
            if consumer.looks_left <= 0 and consumer.status == "CREATING":
                consumer.status = "ACTIVE"
            elif consumer.looks_left <= 0 and consumer.status == "DELETING":
                del self._consumers[key]
            return answer

    def list_stream_consumers(self, *, StreamARN: str) -> dict[str, Any]:  # noqa: D102
        with self._called("list_stream_consumers"):
            found = [
                self._description(name, consumer)
                for (stream, name), consumer in self._consumers.items()
                if stream == StreamARN
            ]
            return {"Consumers": found}

    def deregister_stream_consumer(self, *, ConsumerARN: str) -> dict[str, Any]:  # noqa: D102
        with self._called("deregister_stream_consumer"):
            _, consumer = self._find("", "", ConsumerARN)
            consumer.status, consumer.looks_left = "DELETING", self.looks
            return {}

    def _called(self, operation: str) -> _Call:
        return _Call(self, operation, self._lock)

    def _create(self, stream_arn: str, consumer_name: str) -> _FakeConsumer:
        self._created += 1
        arn = f"{stream_arn}/consumer/{consumer_name}:{1_700_000_000 + self._created}"
        consumer = _FakeConsumer(arn, "CREATING", self.looks)
        self._consumers[stream_arn, consumer_name] = consumer
        return consumer

    def _find(self, stream_arn: str, name: str, arn: str) -> tuple[tuple[str, str], _FakeConsumer]:
        for key, consumer in self._consumers.items():
            if consumer.arn == arn or key == (stream_arn, name):
                return key, consumer
        raise _error("ResourceNotFoundException", "DescribeStreamConsumer")

    def _stream_arn(self, stream_name: str) -> str:
        return f"arn:aws:kinesis:{self.region}:{self.account_id}:stream/{stream_name}"

    @staticmethod
    def _description(name: str, consumer: _FakeConsumer) -> dict[str, Any]:
        return {"ConsumerName": name, "ConsumerARN": consumer.arn, "ConsumerStatus": consumer.status}


class _Call:
    """One call: counted, failed on request, under the lock."""

    def __init__(self, kinesis: FakeKinesis, operation: str, lock: threading.RLock) -> None:
        self._kinesis = kinesis
        self._operation = operation
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire()
        self._kinesis.calls.append(self._operation)
        errors = self._kinesis.errors.get(self._operation)
        if errors:
            self._lock.release()
            raise errors.popleft()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._lock.release()
        after = self._kinesis.after.pop(self._operation, None)
        if after is not None and error is None:
            after()


def _error(code: str, operation: str) -> AwsServiceError:
    return AwsServiceError(code=code, message="as the test wants it", status=400, operation=operation)
