"""What else owns something in `hatch run prove ownership`, a process each: see ROLES.

Each appends what it saw to a file, a JSON object a line with the machine's monotonic time, before it continues.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.async_sink import RemoteSink
from penstock.async_sink.errors import SinkError
from penstock.operator_attributes import Claim, ClaimDecision, RemoteStageScheduler
from penstock.operator_attributes.errors import ClaimLostError, SchedulerAwayError
from penstock.registration import AcquireRequest, BlockingConsumerRegistry, ConflictPolicy, Lease, open_registry
from penstock.registration.errors import AcquireTimeoutError, ConsumerHeldError, LeaseLostError, RegistrationError
from penstock.registration.testing import running_dynamodb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CLAIM_SECONDS = 15.0
"""How long a claim lives without being renewed."""
RIVAL_INTERVAL_SECONDS = 2.0
PATIENCE = timedelta(minutes=10)
_logger = logging.getLogger(__name__)


class Events:
    """The file of a client's events."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._lock = threading.Lock()

    def add(self, what: str, **facts: object) -> None:
        """Write an event down; it outlives the process."""
        with self._lock:
            print(json.dumps({"at": time.monotonic(), "what": what, **facts}), file=self._file, flush=True)


def dynamodb(events: Events, _settings: dict[str, Any]) -> None:
    """Serve DynamoDB."""
    with running_dynamodb() as endpoint:
        events.add("serving", endpoint=endpoint)
        threading.Event().wait()


def write(events: Events, settings: dict[str, Any]) -> None:
    """Write records through the gateway, and note the ids of those that are acknowledged."""
    asyncio.run(_write_all(events, settings))


async def _write_all(events: Events, settings: dict[str, Any]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in range(settings["writers"]):
            tasks.create_task(_write(events, settings, number), name=f"writer {number}")


async def _write(events: Events, settings: dict[str, Any], number: int) -> None:
    count = 0
    while True:
        sink = RemoteSink(settings["gateway"], destination=settings["stream"], reconnect_timeout=PATIENCE)
        try:
            async with sink.create_writer() as writer:
                while True:
                    count += 1
                    ids = [f"{settings['generation']}-{number}-{count}-{one}" for one in range(10)]
                    data = [one.encode() for one in ids]
                    await writer.write_many(pa.RecordBatch.from_pydict({"data": data, "partitionKey": ids}))
                    await writer.flush(end_of_input=True)
                    events.add("acknowledged", ids=ids)
                    await asyncio.sleep(0.5)
        except SinkError as error:
            _logger.warning("writer %d: %s: %s", number, type(error).__name__, error)
            await asyncio.sleep(1)


def hold(events: Events, settings: dict[str, Any]) -> None:
    """Keep a lease through each registry until SIGTERM comes."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    ways = [
        threading.Thread(target=_hold, args=(events, settings, number, stop))
        for number in range(len(settings["registries"]))
    ]
    for way in ways:
        way.start()
    for way in ways:
        way.join()


def _hold(events: Events, settings: dict[str, Any], number: int, stop: threading.Event) -> None:
    consumer = f"held-{number}"
    request = AcquireRequest(
        stream_name=settings["stream"],
        consumer_name=consumer,
        job_id=consumer,
        conflict_policy=ConflictPolicy.WAIT,
        timeout=timedelta(seconds=60),
    )
    with open_registry(endpoint=settings["registries"][number], patience=PATIENCE) as registry:
        while not stop.is_set():
            try:
                lease = registry.acquire(request)
            except RegistrationError as error:
                _logger.warning("%s: %s: %s", consumer, type(error).__name__, error)
                stop.wait(1)
                continue
            events.add("acquired", consumer=consumer, token=lease.fencing_token)
            is_lost = threading.Event()

            def tell(error: LeaseLostError, is_lost: threading.Event = is_lost) -> None:
                events.add("lost", consumer=consumer, reason=str(error))
                is_lost.set()

            def tell_regained(lease: Lease) -> None:
                events.add("acquired", consumer=consumer, token=lease.fencing_token)

            registry.keep(lease, tell, tell_regained)
            while not stop.is_set() and not is_lost.wait(0.2):
                pass
            if not is_lost.is_set():
                events.add("released", consumer=consumer)
                _release(registry, lease)


def _release(registry: BlockingConsumerRegistry, lease: Lease) -> None:
    try:
        registry.release(lease)
    except RegistrationError as error:
        _logger.warning("%s was not released: %s", lease.consumer_name, error)


def rival(events: Events, settings: dict[str, Any]) -> None:
    """Ask for the consumers that others hold, each through the registry that its holder does not use."""
    ways = [
        threading.Thread(target=_rival, args=(events, settings, number), daemon=True)
        for number in range(len(settings["registries"]))
    ]
    for way in ways:
        way.start()
    threading.Event().wait()


def _rival(events: Events, settings: dict[str, Any], number: int) -> None:
    consumer, count = f"held-{number}", 0
    with open_registry(endpoint=settings["registries"][number - 1]) as registry:
        while True:
            time.sleep(RIVAL_INTERVAL_SECONDS)
            count += 1
            asked_at = time.monotonic()
            try:
                lease = registry.acquire(
                    AcquireRequest(
                        stream_name=settings["stream"],
                        consumer_name=consumer,
                        job_id=f"rival-{settings['generation']}-{count}",
                        timeout=timedelta(seconds=5),
                    )
                )
            except (ConsumerHeldError, AcquireTimeoutError):
                events.add("refused", consumer=consumer, asked_at=asked_at)
            except RegistrationError as error:
                events.add("unclear", consumer=consumer, asked_at=asked_at, reason=f"{type(error).__name__}: {error}")
            else:
                events.add("let in", consumer=consumer, asked_at=asked_at, token=lease.fencing_token)
                # Its lease expires, like the lease of a killed job.
                time.sleep(20)


def claim(events: Events, settings: dict[str, Any]) -> None:
    """Compute one result after the other, unless another does."""
    asyncio.run(_claim_all(events, settings))


async def _claim_all(events: Events, settings: dict[str, Any]) -> None:
    number, owner = settings["first"], settings["generation"]
    async with RemoteStageScheduler(settings["scheduler"], timeout_seconds=15) as scheduler:
        while True:
            fingerprint = f"result-{number}"
            try:
                answer = await scheduler.claim(
                    "results", fingerprint, owner=owner, lease_seconds=CLAIM_SECONDS, wait_seconds=5
                )
                if answer.decision is ClaimDecision.COMPUTE:
                    events.add("computing", fingerprint=fingerprint, token=answer.token)
                    await _compute(scheduler, answer, f"{owner}/{answer.token}")
                    events.add("committed", fingerprint=fingerprint, location=f"{owner}/{answer.token}")
                elif answer.decision is ClaimDecision.REUSE:
                    events.add("reused", fingerprint=fingerprint, location=answer.location)
                if answer.decision is not ClaimDecision.WAIT:
                    number += 1
            except ClaimLostError:
                events.add("claim lost", fingerprint=fingerprint)
            except SchedulerAwayError as error:
                _logger.info("claim of %s: %s", fingerprint, error)
                await asyncio.sleep(0.5)


async def _compute(scheduler: RemoteStageScheduler, claimed: Claim, location: str) -> None:
    done_at = time.monotonic() + random.uniform(1, 6)
    while True:
        try:
            await scheduler.renew_claim(claimed)
            if time.monotonic() >= done_at:
                await scheduler.commit_claim(claimed, location=location)
                return
        except SchedulerAwayError as error:
            _logger.info("result of %s: %s", claimed.fingerprint, error)
        await asyncio.sleep(1.5)


ROLES: Mapping[str, Callable[[Events, dict[str, Any]], None]] = {
    "store": dynamodb,
    "writer": write,
    "holder": hold,
    "rival": rival,
    "claimer": claim,
}
"""By the name of the client, without its number."""


def main(folder: Path, name: str, settings: str) -> None:
    """Be a client until the process is ended."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    role = name.rpartition(" ")[0] or name
    ROLES[role](Events(folder / f"{name}.jsonl"), json.loads(settings))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
