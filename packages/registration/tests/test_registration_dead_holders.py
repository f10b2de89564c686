"""Leases of processes of this machine that are dead: how that is known, and how the next job gets them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from penstock.registration import (
    AcquireRequest,
    BlockingConsumerRegistry,
    HolderWatch,
    Lease,
    LeaseMarks,
    LocalConsumerRegistry,
    StreamConsumerRegistrar,
)
from penstock.registration.errors import ConsumerHeldError
from penstock.registration.testing import FakeKinesis, InMemoryLeaseStore, ManualClock

REQUEST = AcquireRequest(stream_name="s", consumer_name="shared", job_id="mine", claim="mine/1")


@pytest.fixture
def registry() -> Iterator[BlockingConsumerRegistry]:
    def make() -> LocalConsumerRegistry:
        fake = FakeKinesis(streams=("s",))
        return LocalConsumerRegistry(StreamConsumerRegistrar(fake, sleep=ManualClock().sleep), InMemoryLeaseStore())

    with BlockingConsumerRegistry(make) as blocking:
        yield blocking


def hold_and_die(marks: LeaseMarks, lease: Lease) -> None:
    """Let another process hold a lease, and end without letting it go."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(marks.hold, lease).result()
        assert not marks.is_dead(lease)


def test_a_process_is_dead_by_the_very_lease_that_it_held(tmp_path: Path) -> None:
    """Nothing is known of the next lease of the same job, nor of a lease of another registry."""
    held = Lease(
        stream_name="s",
        stream_arn="arn:aws:kinesis:us-east-1:000000000000:stream/s",
        consumer_name="shared",
        job_id="job",
        consumer_arn="",
        fencing_token=7,
        time_to_live_seconds=30,
        registration_is_ours=True,
    )
    here = LeaseMarks(endpoint="here:7070", folder=tmp_path)
    elsewhere = (
        LeaseMarks(endpoint="there:7070", folder=tmp_path),
        LeaseMarks(store=tmp_path / "leases.db", folder=tmp_path),
        LeaseMarks(endpoint="here:7070", endpoint_url="http://localhost:4566", folder=tmp_path),
    )
    assert not here.is_dead(held)
    hold_and_die(here, held)
    assert here.is_dead(held)
    assert not any(other.is_dead(held) for other in elsewhere)
    others = ({"fencing_token": 8}, {"job_id": "another"}, {"stream_arn": "another"}, {"consumer_name": "another"})
    assert not any(here.is_dead(replace(held, **other)) for other in others)


def test_the_lease_of_a_dead_process_is_taken_over(tmp_path: Path, registry: BlockingConsumerRegistry) -> None:
    """The next call of the request gets it; a living holder is given to the caller instead."""
    marks = LeaseMarks(folder=tmp_path)
    watch = HolderWatch(registry, REQUEST, marks)
    assert watch.look() is None
    dead = registry.acquire(replace(REQUEST, job_id="dead", claim="dead/1"))
    holder = watch.look()
    assert holder is not None
    assert (holder.job_id, holder.fencing_token) == (dead.job_id, dead.fencing_token)
    hold_and_die(marks, dead)
    with pytest.raises(ConsumerHeldError):
        registry.acquire(REQUEST)
    assert watch.look() is None
    # It is held in the name of the dead job until the request is repeated.
    assert watch.look() is None
    lease = registry.acquire(REQUEST)
    assert lease.job_id == "mine"
    assert lease.fencing_token > dead.fencing_token
    assert watch.look() is None
