"""What the tests of exactly-once share: a stream that is written, split and merged, the table, and how they compare."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from aws_kinesis_agg.aggregator import AggRecord
from patience import PATIENCE_SECONDS

from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin.testing import endpoint_options

DRIVER = Path(__file__).with_name("exactly_once_driver.py")
KILLS = int(os.environ.get("PENSTOCK_KILLS", "2"))
"""Kills of each kind."""
KEYS = [f"key-{number}" for number in range(40)]
STALLED_SECONDS = 120.0

RecordKey = tuple[str, str, int]


def seed() -> int:
    """The run's seed: PENSTOCK_SEED, to have a run again."""
    return int(os.environ.get("PENSTOCK_SEED") or random.randrange(1 << 32))


def wait_for(condition: Callable[[], bool], what: str | Callable[[], str], seconds: float = PATIENCE_SECONDS) -> None:
    """Poll a condition until a deadline; `what` may be a function that describes the state at the end."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.005)


def processes(ancestor: int, text: str) -> list[int]:
    """Ids of a process's descendants with a text in their command lines, ancestors first."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(ancestor).children(recursive=True):
            with suppress(psutil.Error):
                if text in " ".join(process.cmdline()):
                    found.append(process.pid)
    return found


def kill(*victims: int) -> None:
    """kill -9, of what still lives."""
    for process in victims:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@contextmanager
def restless_kinesis(number: int) -> Iterator[RunningEmulator]:
    """A Kinesis whose subscriptions and iterators live for seconds, and that throttles, fails, cuts and dawdles."""
    with running_emulator(
        seed=number,
        subscription_lifetime=timedelta(seconds=3),
        shard_iterator_lifetime=timedelta(seconds=3),
        resubscribe_interval=timedelta(seconds=0.5),
        idle_event_interval=timedelta(seconds=0.5),
        consumer_creation_delay=timedelta(seconds=0.1),
    ) as emulator:
        for operation in ("GetRecords", "GetShardIterator", "SubscribeToShard", "ListShards", "DescribeStreamConsumer"):
            emulator.faults.add("throttle", operation=operation, probability=0.05)
            emulator.faults.add("error", operation=operation, code="InternalFailure", probability=0.03)
            emulator.faults.add("delay", operation=operation, seconds=0.3, probability=0.05)
        for kind, probability in (("stream_error", 0.03), ("reset", 0.02), ("corrupt_crc", 0.02)):
            emulator.faults.add(kind, operation="SubscribeToShard", probability=probability)
        emulator.faults.add("reset", operation="GetRecords", probability=0.02)
        emulator.faults.add("fail_records", share=0.05)
        yield emulator


class Producer:
    """Puts records without a pause, some of them as aggregates, each key's one after the other; reshards when told."""

    def __init__(self, emulator: RunningEmulator, chance: random.Random, *, shards: int = 3) -> None:
        self.name = "flights"
        self.put: dict[RecordKey, tuple[str, str]] = {}
        """Key and data by shard, sequence number and number within an aggregate."""
        self.reshards = 0
        self.aggregates = 0
        self._emulator = emulator
        self._client: Any = emulator.client()
        self._random = chance
        self._counts: Counter[str] = Counter()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="producer")
        self._client.create_stream(StreamName=self.name, ShardCount=shards)

    def options(self, *, tls: bool, **options: str) -> dict[str, str]:
        """Options of the data source: over TLS, and so HTTP/2, or not."""
        url = self._emulator.tls_endpoint_url if tls else self._emulator.endpoint_url
        if tls:
            options["caBundle"] = str(self._emulator.ca_file)
        return endpoint_options(url, self.name, initialPosition="TRIM_HORIZON", **options)

    def __enter__(self) -> "Producer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Put no more."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def reshard(self) -> None:
        """Split a shard, or merge two, so that two to six are open."""
        shards = [one for one in self._shards() if "EndingSequenceNumber" not in one["SequenceNumberRange"]]
        shards.sort(key=lambda one: int(one["HashKeyRange"]["StartingHashKey"]))
        try:
            self._split_or_merge(shards)
        except self._client.exceptions.InvalidArgumentException as error:
            # An unkind service lists shards as they were before the last change: another time.
            if "already been merged or split" not in str(error):
                raise
        else:
            self.reshards += 1

    def _split_or_merge(self, shards: list[dict[str, Any]]) -> None:
        if len(shards) <= 2 or (len(shards) < 6 and self._random.random() < 0.5):
            shard = self._random.choice(shards)
            keys = shard["HashKeyRange"]
            middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2
            self._client.split_shard(
                StreamName=self.name, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle)
            )
        else:
            first = self._random.randrange(len(shards) - 1)
            self._client.merge_shards(
                StreamName=self.name,
                ShardToMerge=shards[first]["ShardId"],
                AdjacentShardToMerge=shards[first + 1]["ShardId"],
            )

    def _shards(self) -> list[dict[str, Any]]:
        return list(self._client.list_shards(StreamName=self.name)["Shards"])

    def _run(self) -> None:
        chance = random.Random(self._random.random())
        try:
            while not self._stop.is_set():
                if chance.random() < 0.3:
                    self._put_aggregate(chance.choice(KEYS), chance.randint(2, 6))
                else:
                    self._put_records(chance.sample(KEYS, 10))
                self._stop.wait(chance.uniform(0, 0.6))
        except BaseException as error:
            self._error = error

    def _next(self, key: str) -> str:
        self._counts[key] += 1
        return f"{key}:{self._counts[key]}"

    def _put_records(self, keys: list[str]) -> None:
        """Each key is in a request once: what is refused is put again before the next of its key."""
        pending = [(key, self._next(key)) for key in keys]
        while pending:
            records = [{"Data": data.encode(), "PartitionKey": key} for key, data in pending]
            answers = self._client.put_records(StreamName=self.name, Records=records)["Records"]
            refused = []
            for (key, data), answer in zip(pending, answers, strict=True):
                if "SequenceNumber" in answer:
                    self.put[answer["ShardId"], answer["SequenceNumber"], 0] = key, data
                else:
                    refused.append((key, data))
            pending = refused

    def _put_aggregate(self, key: str, count: int) -> None:
        hash_key = str(int.from_bytes(hashlib.md5(key.encode()).digest()))
        aggregate, texts = AggRecord(), [self._next(key) for _ in range(count)]
        for text in texts:
            assert aggregate.add_user_record(key, text.encode(), hash_key)
        _, _, data = aggregate.get_contents()
        while True:
            entry = {"Data": bytes(data), "PartitionKey": key, "ExplicitHashKey": hash_key}
            (answer,) = self._client.put_records(StreamName=self.name, Records=[entry])["Records"]
            if "SequenceNumber" in answer:
                break
        for sub, text in enumerate(texts):
            self.put[answer["ShardId"], answer["SequenceNumber"], sub] = key, text
        self.aggregates += 1


class Table:
    """A driver's folder: its table, its checkpoint, and the files with its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start_seconds: float | None = None
        """From a driver's start to its query's, as the last one that came so far took it."""
        self._read: dict[str, tuple[int, list[list[Any]]]] = {}
        for name in ("table", "reads", "attempts"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def settings(self, options: dict[str, str], source: str = "kinesis") -> None:
        """Let the query run with these options from now on."""
        temporary = self.folder / "settings.tmp"
        temporary.write_text(json.dumps({"format": source, "options": options}))
        temporary.replace(self.folder / "settings.json")

    def newest(self, log: str) -> int:
        """The newest entry of Spark's `offsets` or `commits`; -1 before the first."""
        with suppress(FileNotFoundError):
            return max(
                (int(name) for name in os.listdir(self.folder / "checkpoint" / log) if name.isdigit()), default=-1
            )
        return -1

    def rows(self) -> list[list[Any]]:
        """All rows, by micro-batch and then as they were in it."""
        for file in (self.folder / "table").glob("*.json"):
            changed = file.stat().st_mtime_ns
            if self._read.get(file.stem, (0,))[0] != changed:
                self._read[file.stem] = changed, json.loads(file.read_text())
        return [row for batch in sorted(self._read, key=int) for row in self._read[batch][1]]

    def failures(self) -> str:
        """Why queries failed, and the end of the driver's log."""
        texts = [(self.folder / name) for name in ("failures", "driver.log")]
        return "\n".join(text.read_text()[-3000:] for text in texts if text.exists())

    @contextmanager
    def driver(self, *hosts: str) -> Iterator[subprocess.Popen[bytes]]:
        """A driver with its JVM in a process group of their own, which is killed at the end."""
        for name in ("starting", "end", "ended"):
            (self.folder / name).unlink(missing_ok=True)
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        began = time.time()
        with (self.folder / "driver.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, DRIVER, self.folder, *hosts],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            with suppress(FileNotFoundError):
                self.start_seconds = (self.folder / "starting").stat().st_mtime - began


def differences(put: dict[RecordKey, tuple[str, str]], rows: list[list[Any]]) -> list[str]:
    """What was lost, doubled, invented, changed, or came out of order; nothing of it is what a test wants."""
    found = Counter((row[0], row[1], row[2]) for row in rows)
    problems = [f"lost: {key} {put[key]}" for key in put if key not in found]
    problems += [f"doubled: {key}" for key, count in found.items() if count > 1]
    problems += [f"invented: {key}" for key in found if key not in put]
    by_shard: dict[str, list[tuple[int, int]]] = defaultdict(list)
    by_key: dict[str, list[int]] = defaultdict(list)
    for shard, number, sub, key, data in rows:
        if put.get((shard, number, sub), (key, data)) != (key, data):
            problems.append(f"changed: {(shard, number, sub)} is {(key, data)}")
        by_shard[shard].append((int(number), sub))
        by_key[key].append(int(data.partition(":")[2]))
    in_order: list[tuple[str, Sequence[Any]]] = [*by_shard.items(), *by_key.items()]
    for name, numbers in in_order:
        problems += [f"out of order in {name}: {b} after {a}" for a, b in pairwise(numbers) if b <= a]
    return problems


def finish(table: Table, producer: Producer, emulator: RunningEmulator, number: int) -> None:
    """End the producer and the faults, let a driver read the rest, and compare."""
    producer.finish()
    emulator.faults.clear()
    seen, since = -1, time.monotonic()
    # A busy machine may take long, if it makes progress.
    while len(table.rows()) < len(producer.put) and time.monotonic() - since < STALLED_SECONDS:
        if len(table.rows()) != seen:
            seen, since = len(table.rows()), time.monotonic()
        time.sleep(0.1)
    (table.folder / "end").touch()
    with suppress(AssertionError):
        wait_for((table.folder / "ended").exists, "the driver does not end", 60)
    problems = differences(producer.put, table.rows())
    assert not problems, f"seed {number}, {len(problems)} problems: {problems[:10]}\n{table.failures()}"
