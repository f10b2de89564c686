"""Writers, resharding and readers under random faults: nothing that was acknowledged is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pybase64
from botocore.eventstream import ChecksumMismatch, EventStreamBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.emulator import EmulatorConfig, Kinesis
from penstock.emulator._http.delivery import CutConnection, CutStream, pump
from penstock.emulator._http.dispatch import Dispatcher, Request, Response
from penstock.emulator._state import subscription
from penstock.emulator.testing import ManualClock

# How often the loop turns before a subscription counts as having nothing more to say.
_TURNS = 60

CALL_FAULTS = [
    {"kind": "throttle"},
    {"kind": "error", "code": "InternalFailure"},
    {"kind": "reset"},
    {"kind": "reset", "applies": False},
    {"kind": "silence"},
    {"kind": "fail_records", "share": 0.4},
    {"kind": "fail_records", "indices": [0, 2]},
]
EVENT_FAULTS = [
    {"kind": "stream_error"},
    {"kind": "stream_error", "code": "ResourceInUseException"},
    {"kind": "corrupt_crc"},
    {"kind": "reset", "operation": "SubscribeToShard"},
    {"kind": "silence", "operation": "SubscribeToShard"},
]


@dataclass
class Account:
    """An emulator without sockets, and what its producer knows of the records that it put."""

    seed: int
    clock: ManualClock = field(default_factory=ManualClock)
    acknowledged: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    unknown: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        config = EmulatorConfig(enforce_limits=False, consumer_creation_delay=timedelta(0), seed=self.seed)
        self.kinesis = Kinesis(config)
        self.stream = self.kinesis.create_stream("stream", 2, now=self.clock.time())
        self.consumer = self.stream.register("reader", self.clock.time()).arn
        self._dispatcher = Dispatcher(self.kinesis, self.clock)
        self._number = 0

    def call(self, operation: str, params: Any) -> tuple[Response, Any]:
        """The response, and its body; None where a fault takes it away."""
        headers = {"x-amz-target": f"Kinesis_20131202.{operation}"}
        response = self._dispatcher.handle(Request("POST", "/", headers, json.dumps(params).encode()))
        lost = response.delivery is not None and response.delivery.is_lost
        return response, None if lost or not response.body else json.loads(response.body)

    def put(self, keys: list[int]) -> None:
        """Put a record for each key, each with data of its own, and note what became of it."""
        entries, data = [], []
        for key in keys:
            self._number += 1
            data.append(b"%d" % self._number)
            entries.append(
                {
                    "Data": pybase64.b64encode(data[-1]).decode(),
                    "PartitionKey": "key",
                    "ExplicitHashKey": str(key * 2**124),
                }
            )
        response, answer = self.call("PutRecords", {"StreamName": "stream", "Records": entries})
        if answer is None:
            self.unknown.update(data)
        elif response.status != 200:
            self.refused.update(data)
        else:
            for item, result in zip(data, answer["Records"], strict=True):
                if "ErrorCode" in result:
                    self.refused.add(item)
                else:
                    written = int(result["SequenceNumber"]), item
                    self.acknowledged.setdefault(result["ShardId"], []).append(written)


class Reader:
    """Follows the lineage, by polling or by subscriptions, and goes on from the last answer that it got whole."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.read: dict[str, list[bytes]] = {}
        self._after: dict[str, str | None] = {shard.id: None for shard in account.stream.shards}
        self._finished: set[str] = set()

    @property
    def active(self) -> list[str]:
        return [shard for shard in self._after if shard not in self._finished]

    def _start(self, shard: str, kind: str, number: str) -> dict[str, str]:
        after = self._after[shard]
        return {kind: "TRIM_HORIZON"} if after is None else {kind: "AFTER_SEQUENCE_NUMBER", number: after}

    def _take(self, shard: str, answer: dict[str, Any]) -> None:
        self.read.setdefault(shard, []).extend(pybase64.b64decode(record["Data"]) for record in answer["Records"])
        if answer["Records"]:
            self._after[shard] = answer["Records"][-1]["SequenceNumber"]
        if answer.get("ChildShards"):
            self._finished.add(shard)
            for child in answer["ChildShards"]:
                self._after.setdefault(child["ShardId"], None)

    def poll(self, shard: str) -> None:
        """Read once; what fails is left for the next time."""
        where = self._start(shard, "ShardIteratorType", "StartingSequenceNumber")
        request = {"StreamName": "stream", "ShardId": shard, **where}
        response, answer = self._account.call("GetShardIterator", request)
        if answer is None or response.status != 200:
            return
        response, answer = self._account.call("GetRecords", {"ShardIterator": answer["ShardIterator"], "Limit": 3})
        if answer is not None and response.status == 200:
            self._take(shard, answer)

    async def subscribe(self, shard: str) -> None:
        """Subscribe, and read until nothing more comes, or something goes wrong."""
        self._account.clock.advance(6)
        where = self._start(shard, "Type", "SequenceNumber")
        request = {"ConsumerARN": self._account.consumer, "ShardId": shard, "StartingPosition": where}
        response, _ = self._account.call("SubscribeToShard", request)
        if response.subscription is None or response.through is None:
            return
        buffer = EventStreamBuffer()
        broken = False

        async def send(data: bytes) -> None:
            nonlocal broken
            if broken:
                return
            buffer.add_data(data)
            try:
                for message in buffer:
                    headers: Any = message.headers
                    if headers[":message-type"] == "exception":
                        broken = True
                    elif headers[":event-type"] == "SubscribeToShardEvent":
                        event = json.loads(message.payload)
                        self._take(shard, event)
                        self._after[shard] = event.get("ContinuationSequenceNumber", self._after[shard])
            except ChecksumMismatch:
                broken = True

        pumping = asyncio.create_task(pump(response.subscription, self._account.clock, response.through(send)))
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        pumping.cancel()
        (outcome,) = await asyncio.gather(pumping, return_exceptions=True)
        assert outcome is None or isinstance(outcome, (asyncio.CancelledError, CutConnection, CutStream)), outcome


def reshard(account: Account, value: int) -> None:
    stream, now = account.stream, account.clock.time()
    shard = stream.open_shards[value % len(stream.open_shards)]
    if value % 2 and len(stream.open_shards) > 1:
        index = value % (len(stream.open_shards) - 1)
        stream.merge(stream.open_shards[index], stream.open_shards[index + 1], now)
    elif shard.hash_keys.end - shard.hash_keys.start > 4:
        stream.split(shard, (shard.hash_keys.start + shard.hash_keys.end) // 2, now)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "reshard", "poll", "poll", "subscribe", "subscribe"]),
        st.integers(0, 2**16),
    ),
    min_size=10,
    max_size=60,
)
FAULTS = st.lists(
    st.fixed_dictionaries(
        {
            "at": st.integers(0, 20),
            "what": st.sampled_from(CALL_FAULTS + EVENT_FAULTS),
            "probability": st.sampled_from([0.2, 0.5, 1.0]),
            "skip": st.integers(0, 3),
            "count": st.sampled_from([1, 2, 5, None]),
        }
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=80)
@given(seed=st.integers(0, 2**16), steps=STEPS, faults=FAULTS)
def test_faults_lose_double_and_reorder_nothing(
    seed: int, steps: list[tuple[str, int]], faults: list[dict[str, Any]]
) -> None:
    """Acknowledged records are read once, refused ones never, unknown ones once at most; each shard in its order."""
    # Small events, so that a subscription has several to lose.
    with patch.object(subscription, "_MAX_EVENT_RECORDS", 2):
        asyncio.run(run(Account(seed), steps, faults))


async def run(account: Account, steps: list[tuple[str, int]], faults: list[dict[str, Any]]) -> None:
    # One that polls, and one that subscribes: they see the same, however they fail.
    readers = poller, subscriber = Reader(account), Reader(account)
    for number, (kind, value) in enumerate(steps):
        for fault in faults:
            if fault["at"] == number:
                chance = {name: fault[name] for name in ("probability", "skip", "count")}
                account.kinesis.faults.add(**fault["what"], **chance)
        account.clock.advance(value % 5 / 10)
        if kind == "put":
            account.put([(value + index * 7) % 16 for index in range(1 + value % 5)])
        elif kind == "reshard":
            reshard(account, value)
        elif kind == "poll" and poller.active:
            poller.poll(poller.active[value % len(poller.active)])
        elif kind == "subscribe" and subscriber.active:
            await subscriber.subscribe(subscriber.active[value % len(subscriber.active)])
    account.kinesis.faults.clear()
    shards = {shard.id: [record.data for record in shard.records] for shard in account.stream.shards}
    for reader in readers:
        for _ in range(2 * len(steps) + 10):
            for shard in reader.active:
                if reader is poller:
                    reader.poll(shard)
                else:
                    await reader.subscribe(shard)
            if reader.read.keys() | {name for name, data in shards.items() if not data} >= shards.keys() and all(
                len(reader.read.get(name, [])) >= len(data) for name, data in shards.items()
            ):
                break
        assert {name: data for name, data in reader.read.items() if data} == {
            name: data for name, data in shards.items() if data
        }
    stored = [item for data in shards.values() for item in data]
    assert len(stored) == len(set(stored))
    assert not account.refused.intersection(stored)
    acknowledged = {item for written in account.acknowledged.values() for _, item in written}
    assert acknowledged <= set(stored) <= acknowledged | account.unknown
    for shard, written in account.acknowledged.items():
        numbers = [number for number, _ in written]
        assert numbers == sorted(set(numbers))
        known = {item for _, item in written}
        assert [item for item in shards[shard] if item in known] == [item for _, item in written]
