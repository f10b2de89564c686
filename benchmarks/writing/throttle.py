"""Goodput against a stream's real limits: eight shards, offered more than they take, and no record lost or doubled.

The emulator enforces 1,000 records/s and 1 MiB/s per shard. Each contender is a process of its own against an emulator
of its own, all of a round at the same time: a machine that is busy is so for all of them. A writer is offered three
times the limit, as far as it takes it; what the stream accepted and refused is counted after a warm-up. Then what is in
the stream is read, and compared with what was acknowledged: each record has a number.
"""

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks._harness import Case
from benchmarks.writing._throttle_load import STREAM
from penstock.emulator.testing import kinesis_client

SHARDS = 8
LIMIT = SHARDS * 1_000
_OFFERED = 3 * LIMIT
_WARM_UP_SECONDS = 5.0
_SECONDS = 60.0
_PATIENCE_SECONDS = 120.0
_ASYNC_KINESIS = "3.0.1"
_PEER = Path(__file__).with_name("_async_kinesis_load.py")
_OURS, _AIMD, _PRODUCER = "penstock", "AIMD x0.5", "async-kinesis"
_STRATEGIES = {_OURS: "kinesis", _AIMD: "aimd"}


@dataclass(frozen=True)
class Load:
    """What a stream did in the seconds that count, and what is in it."""

    accepted_per_second: float
    throttled_share: float
    """The throttled share of the sent records."""
    acknowledged: int = 0
    """Records, from the first to the last."""
    timed_out: int = 0
    """Requests without an answer: their records may be doubled."""
    lost: int = 0
    """Acknowledged records that are not in the stream."""
    doubled: int = 0
    """Copies in the stream beyond the first."""


@contextmanager
def stream_with_limits(shards: int = SHARDS) -> Iterator[str]:
    """The endpoint of an emulator in a process of its own, with a stream `load`; reading it back has no limits."""
    command = [sys.executable, "-m", "penstock.emulator", "--no-tls", "--exit-with-parent"]
    command += ["--shard-read-calls-per-second", "1e6", "--shard-read-bytes-per-second", "1e12"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        endpoint = str(json.loads(process.stdout.readline())["endpoint_url"])
        try:
            client = kinesis_client(endpoint)
            client.create_stream(StreamName=STREAM, ShardCount=shards)
            while (
                client.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]["StreamStatus"]
                != "ACTIVE"
            ):
                time.sleep(0.05)
            yield endpoint
        finally:
            process.kill()


def read_numbers(endpoint: str) -> Counter[int]:
    """How often each number is in the stream."""
    client = kinesis_client(endpoint)
    found: Counter[int] = Counter()
    for shard in client.list_shards(StreamName=STREAM)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=STREAM, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        behind = True
        while behind:
            answer = client.get_records(ShardIterator=iterator, Limit=10_000)
            found.update(int(record["Data"].split(b" ", 1)[0]) for record in answer["Records"])
            iterator, behind = answer["NextShardIterator"], answer["MillisBehindLatest"] > 0
    return found


def _command(contender: str, endpoint: str, seconds: float) -> list[str]:
    times = [str(_WARM_UP_SECONDS), str(seconds)]
    if contender != _PRODUCER:
        return [
            sys.executable,
            "-m",
            "benchmarks.writing._throttle_load",
            endpoint,
            *times,
            _STRATEGIES[contender],
            str(_OFFERED),
        ]
    uv = shutil.which("uv")
    if uv is None:
        raise RuntimeError("uv is needed to run async-kinesis in an environment of its own")
    packages = ["--with", f"async-kinesis=={_ASYNC_KINESIS}"]
    return [uv, "run", "--quiet", "--no-project", *packages, "python", str(_PEER), endpoint, *times]


def measure(contenders: Sequence[str], seconds: float) -> dict[str, Load]:
    """One round: all contenders at the same time."""
    loads = {}
    with ExitStack() as stack:
        endpoints = {contender: stack.enter_context(stream_with_limits()) for contender in contenders}
        running = {
            contender: stack.enter_context(
                subprocess.Popen(_command(contender, endpoint, seconds), stdout=subprocess.PIPE, text=True)
            )
            for contender, endpoint in endpoints.items()
        }
        for process in running.values():
            stack.callback(process.kill)
        for contender, process in running.items():
            answer, _ = process.communicate(timeout=seconds + _PATIENCE_SECONDS)
            if process.returncode:
                raise RuntimeError(f"the load of {contender} ended with code {process.returncode}")
            loads[contender] = Load(**json.loads(answer))
        return {
            contender: load if contender == _PRODUCER else _checked(load, read_numbers(endpoints[contender]))
            for contender, load in loads.items()
        }


def _checked(load: Load, found: Counter[int]) -> Load:
    present = sum(1 for number in found if number < load.acknowledged)
    return Load(
        load.accepted_per_second,
        load.throttled_share,
        load.acknowledged,
        load.timed_out,
        lost=load.acknowledged - present,
        doubled=found.total() - len(found),
    )


def run(rounds: int) -> Iterator[Case]:
    """Goodput over the limit, the share of records that were throttled, and whether each record is there once."""
    measured = [measure((_OURS, _AIMD, _PRODUCER), _SECONDS) for _ in range(rounds)]
    loads = {name: [each[name] for each in measured] for name in measured[0]}
    goodput = {name: [load.accepted_per_second / LIMIT for load in each] for name, each in loads.items()}
    ours, ones = loads[_OURS], [1.0] * rounds

    def alone(name: str, peer_name: str, figures: list[float]) -> Case:
        return Case(name=name, peer_name=peer_name, unit="", ours=figures, peers=ones)

    yield alone("goodput-over-limit", "the limit", goodput[_OURS])
    yield alone("throttled-share", "all records sent", [load.throttled_share for load in ours])
    # The sums of all rounds: a median would hide a single record.
    for name, total in (
        ("acknowledged", sum(load.acknowledged for load in ours)),
        ("lost", sum(load.lost for load in ours)),
        ("doubled", sum(load.doubled for load in ours)),
        ("timed-out", sum(load.timed_out for load in ours)),
    ):
        yield alone(name, "one", [float(total)] * rounds)
    for name, slug in ((_AIMD, "aimd-half"), (_PRODUCER, "async-kinesis")):
        yield Case(
            name=f"goodput-over-{slug}",
            peer_name=name,
            unit="of the limit",
            ours=goodput[_OURS],
            peers=goodput[name],
        )
        shares = [load.throttled_share for load in loads[name]]
        yield alone(f"throttled-share-of-{slug}", "all records sent", shares)
