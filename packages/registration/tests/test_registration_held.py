"""The leases of one job: what is known of them when they are taken back, lost and given back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.registration import AcquireRequest, BlockingConsumerRegistry, HeldLeases, Lease, LeaseMarks
from penstock.registration.errors import ConsumerDeregisteredError, LeaseLostError, RegistrationError

STREAMS = ("a", "b")


class Registry:
    """Gives every lease, and lets the test take leases back, lose them and register consumers again."""

    def __init__(self) -> None:
        self.regained: dict[str, Callable[[Lease], None]] = {}
        self.lost: dict[str, Callable[[LeaseLostError], None]] = {}
        self.released: list[tuple[str, bool]] = []
        self.refuses_again: Exception | None = None
        self.is_closed = False

    def acquire(self, request: AcquireRequest) -> Lease:
        return Lease(
            stream_name=request.stream_name,
            consumer_name=request.consumer_name,
            job_id=request.job_id,
            consumer_arn=f"arn:{request.stream_name}",
            fencing_token=5,
            time_to_live_seconds=30,
            registration_is_ours=True,
        )

    def keep(self, lease: Lease, on_lost: Callable[[LeaseLostError], None], on_regained: Any) -> None:
        self.lost[lease.stream_name], self.regained[lease.stream_name] = on_lost, on_regained

    def list_consumers(self, stream_name: str) -> list[Any]:
        return []

    def is_held(self, lease: Lease) -> bool:
        return lease.fencing_token > 5

    def register_again(self, lease: Lease) -> Lease:
        if self.refuses_again is not None:
            raise self.refuses_again
        return replace(lease, consumer_arn=f"{lease.consumer_arn}/again", fencing_token=lease.fencing_token + 1)

    def release(self, lease: Lease, *, disown: bool = False) -> bool:
        self.released.append((lease.stream_name, disown))
        return True

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def lost() -> list[LeaseLostError]:
    return []


@pytest.fixture
def held(registry: Registry, lost: list[LeaseLostError], tmp_path: Path) -> HeldLeases:
    leases = HeldLeases(cast("BlockingConsumerRegistry", registry), LeaseMarks(folder=tmp_path), lost.append)
    for stream in STREAMS:
        leases.acquire(AcquireRequest(stream_name=stream, consumer_name="c", job_id="job", claim=f"job/{stream}"))
    return leases


def tokens(held: HeldLeases) -> list[int]:
    return [one.fencing_token for one in held.leases(STREAMS)]


def test_news_of_a_lease_that_come_late_change_nothing(held: HeldLeases, registry: Registry) -> None:
    """Each comes on a thread of its own."""
    (lease, _) = held.leases(STREAMS)
    registry.regained["a"](replace(lease, fencing_token=8))
    registry.regained["a"](replace(lease, fencing_token=7))
    assert tokens(held) == [8, 5]
    held.release(["a"])
    registry.regained["a"](replace(lease, fencing_token=9))
    assert held.streams == ("b",)


def test_leases_are_settled_once_the_registry_says_that_all_are_held(held: HeldLeases, registry: Registry) -> None:
    """Those that ran out are waited for."""
    (lease, other) = held.leases(STREAMS)
    registry.regained["a"](replace(lease, fencing_token=8))
    registry.regained["b"](replace(other, fencing_token=6))
    assert [one.fencing_token for one in held.settled(STREAMS)] == [8, 6]


def test_a_lease_that_is_lost_is_reported_and_ends_every_wait(
    held: HeldLeases, registry: Registry, lost: list[LeaseLostError]
) -> None:
    """The first error stays."""
    held.check()
    first, second = (
        LeaseLostError(stream_name=stream, consumer_name="c", fencing_token=5, reason="another job has it")
        for stream in STREAMS
    )
    registry.lost["a"](first)
    registry.lost["b"](second)
    assert held.is_lost
    assert lost == [first, second]
    for call in (held.check, lambda: held.settled(STREAMS)):
        with pytest.raises(LeaseLostError) as caught:
            call()
        assert caught.value is first


def test_a_consumer_that_cannot_be_registered_again_keeps_its_lease(held: HeldLeases, registry: Registry) -> None:
    """Unless somebody deregisters it again and again."""
    assert [one.consumer_arn for one in held.registered_again(["a"])] == ["arn:a/again"]
    registry.refuses_again = RegistrationError("no")
    assert [one.consumer_arn for one in held.registered_again(STREAMS)] == ["arn:a/again", "arn:b"]
    registry.refuses_again = ConsumerDeregisteredError(stream_name="a", consumer_name="c", times=4, within_seconds=60.0)
    with pytest.raises(ConsumerDeregisteredError):
        held.registered_again(STREAMS)


def test_a_consumer_by_which_another_reader_reads_stays_registered(held: HeldLeases, registry: Registry) -> None:
    """The others are deregistered; then the registry is closed."""
    held.close(lambda lease: lease.stream_name == "b")
    assert sorted(registry.released) == [("a", False), ("b", True)]
    assert held.streams == ()
    assert registry.is_closed
