"""The service as a process."""

from datetime import timedelta
from pathlib import Path

import pytest
from registry_process import Command, ConsumerNames, Eventually, MakeRequest, Serve, lease_of

from penstock.registration import open_registry
from penstock.registration.errors import ConsumerHeldError, LeaseLostError, RegistrationError
from penstock.rpc import ClientSecurity

MODULE = "penstock.services.consumer_registry"


def test_leases_are_given_refused_and_given_back(
    serve: Serve, request_lease: MakeRequest, consumer_names: ConsumerNames
) -> None:
    """Between two clients of one service, with a consumer in Kinesis meanwhile."""
    with serve("--grace-seconds", "0") as service, open_registry(endpoint=service.address) as registry:
        lease = registry.acquire(request_lease("first"))
        assert lease.registration_is_ours
        assert consumer_names() == ["delays"]
        with open_registry(endpoint=service.address) as other, pytest.raises(ConsumerHeldError, match="'first'"):
            other.acquire(request_lease("second"))
        assert registry.release(lease) is True
        assert consumer_names() == []


def test_sigterm_drains_at_once_and_a_restart_loses_no_lease(
    serve: Serve, request_lease: MakeRequest, eventually: Eventually
) -> None:
    """A kept lease is still held by its job after the restart, under the same token, and others are still refused."""
    no_grace = ("--grace-seconds", "0")
    with serve(*no_grace, "--drain-seconds", "3600") as service, open_registry(endpoint=service.address) as registry:
        lease = registry.acquire(request_lease("first", time_to_live=timedelta(seconds=60)))
        lost: list[LeaseLostError] = []
        registry.keep(lease, lost.append)
        # The heartbeat stream is open: were it not ended, the drain would take its hour.
        assert service.terminate() == 0
        port = service.address.rpartition(":")[2]
        with serve("--port", port, *no_grace) as restarted, open_registry(endpoint=restarted.address) as other:
            found = lease_of(other)
            assert found.fencing_token == lease.fencing_token
            with pytest.raises(ConsumerHeldError):
                other.acquire(request_lease("second"))
            left = [found.time_to_live_seconds]

            def is_prolonged() -> bool:
                left.append(lease_of(other).time_to_live_seconds)
                return left[-1] > left[-2]

            # Its heartbeats arrive again: from one look to the next it has more time, where it had less before.
            eventually(is_prolonged)
            assert lost == []
            registry.release(lease)


def test_the_token_is_asked_for(serve: Serve, command: Command) -> None:
    """From the environment on both sides; calls without it are refused."""
    with serve(PENSTOCK_REGISTRY_TOKEN="a-secret-of-these-tests-with-32-characters") as service:
        with open_registry(endpoint=service.address) as registry, pytest.raises(RegistrationError) as raised:
            registry.list_consumers()
        assert raised.value.code == "REGISTRY_ACCESS"
        with open_registry(
            endpoint=service.address, security=ClientSecurity(token="a-secret-of-these-tests-with-32-characters")
        ) as registry:
            registry.list_consumers()
        assert command("ls", "--endpoint", service.address).returncode == 1
        listing = command(
            "ls", "--endpoint", service.address, PENSTOCK_REGISTRY_TOKEN="a-secret-of-these-tests-with-32-characters"
        )
        assert listing.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["serve"], "store"),
        (["serve", "--store", "redis://somewhere"], "store"),
        (["serve", "--store", "dynamodb://"], "store"),
        (["serve", "--store", "sqlite:///tmp/never.db", "--consumer-shard-hour-usd", "-1"], "shard-hour-usd"),
        (["serve", "--store", "sqlite:///tmp/never.db", "--grace-seconds", "soon"], "--grace-seconds"),
        (["serve", "--store", "sqlite:///tmp/never.db", "--grace-seconds", "-1"], "--grace-seconds"),
        (["serve", "--store", "sqlite:///tmp/never.db", "--time-to-live-seconds", "0"], "--time-to-live-seconds"),
        (
            ["serve", "--store", "sqlite:///tmp/never.db", "--longest-time-to-live-seconds", "1"],
            "--longest-time-to-live-seconds (PENSTOCK_REGISTRY_LONGEST_TIME_TO_LIVE_SECONDS): must not be less than "
            "--time-to-live-seconds (PENSTOCK_REGISTRY_TIME_TO_LIVE_SECONDS)",
        ),
        (["ls"], "endpoint"),
    ],
)
def test_wrong_settings_end_it_with_a_word(arguments: list[str], word: str, command: Command) -> None:
    """One line that names the setting, no traceback, exit code 2."""
    ended = command(*arguments)
    assert ended.returncode == 2
    assert word in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_store_that_cannot_be_used_ends_it_with_a_word(tmp_path: Path, command: Command) -> None:
    """At the start, not at the first call."""
    (tmp_path / "registry.db").write_text("no database " * 100)
    ended = command("serve", "--store", f"sqlite://{tmp_path}/registry.db", "--region", "eu-west-1")
    assert ended.returncode == 2
    assert "not a database" in ended.stderr
