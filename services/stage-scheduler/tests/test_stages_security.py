"""TLS, mutual TLS and tokens on the real socket, for clients of the API and for the commands."""

import asyncio
import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from penstock.operator_attributes import ClaimDecision, LocalStageScheduler, RemoteStageScheduler, open_stage_scheduler
from penstock.operator_attributes.errors import ClaimLostError, RemoteSchedulerError
from penstock.rpc import ClientSecurity
from penstock.rpc.testing import ServiceProcess, service_process
from penstock.services.stage_scheduler.__main__ import main

MODULE = "penstock.services.stage_scheduler"
DEADLINE = 60
TOKEN = "a-long-secret-of-tests-with-32-characters"


@dataclass(frozen=True)
class Files:
    ca: Path
    other_ca: Path
    server: tuple[Path, Path]
    client: tuple[Path, Path]
    stranger: tuple[Path, Path]
    token: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")

    def issue(authority: trustme.CA, name: str, identity: str) -> tuple[Path, Path]:
        leaf = authority.issue_cert(identity)
        leaf.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        leaf.private_key_pem.write_to_path(folder / f"{name}.key")
        return folder / f"{name}.pem", folder / f"{name}.key"

    ours, theirs = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(folder / "ca.pem")
    theirs.cert_pem.write_to_path(folder / "other-ca.pem")
    (folder / "token").write_text(TOKEN + "\n")
    return Files(
        ca=folder / "ca.pem",
        other_ca=folder / "other-ca.pem",
        server=issue(ours, "server", "127.0.0.1"),
        client=issue(ours, "client", "driver"),
        stranger=issue(theirs, "stranger", "driver"),
        token=folder / "token",
    )


@pytest.fixture(scope="module")
def tls(files: Files) -> Iterator[ServiceProcess]:
    certificate, key = files.server
    arguments = ["serve", "--certificate-file", str(certificate), "--private-key-file", str(key)]
    with service_process(MODULE, arguments) as service:
        yield service


@pytest.fixture(scope="module")
def mutual(files: Files) -> Iterator[ServiceProcess]:
    """The settings come from the environment, as in a container."""
    certificate, key = files.server
    environment = {
        **os.environ,
        "PENSTOCK_STAGES_CERTIFICATE_FILE": str(certificate),
        "PENSTOCK_STAGES_PRIVATE_KEY_FILE": str(key),
        "PENSTOCK_STAGES_CLIENT_CA_FILE": str(files.ca),
        "PENSTOCK_STAGES_TOKEN_FILE": str(files.token),
    }
    with service_process(MODULE, ["serve"], environment) as service:
        yield service


async def refused(address: str, security: ClientSecurity | None) -> str:
    async with asyncio.timeout(DEADLINE), RemoteStageScheduler(address, security) as client:
        with pytest.raises(RemoteSchedulerError) as caught:
            await client.list_jobs()
    return caught.value.code


async def test_tls_serves_those_who_trust_its_authority(tls: ServiceProcess, files: Files) -> None:
    """Others, and those who speak plain text, get no answer."""
    async with asyncio.timeout(DEADLINE), RemoteStageScheduler(tls.address, ClientSecurity(ca_file=files.ca)) as client:
        assert await client.list_jobs() == ()
    assert await refused(tls.address, ClientSecurity(ca_file=files.other_ca)) == "UNAVAILABLE"
    assert await refused(tls.address, None) == "UNAVAILABLE"


async def test_mutual_tls_and_token_demand_both(mutual: ServiceProcess, files: Files) -> None:
    """A certificate of another authority, none, a wrong token and none are refused."""
    certificate, key = files.client
    stranger, stranger_key = files.stranger

    def client(token: str | None, *, own: Path | None = certificate, own_key: Path | None = key) -> ClientSecurity:
        return ClientSecurity(ca_file=files.ca, certificate_file=own, private_key_file=own_key, token=token)

    async with asyncio.timeout(DEADLINE), RemoteStageScheduler(mutual.address, client(TOKEN)) as friend:
        assert await friend.list_jobs() == ()
    assert await refused(mutual.address, client("wrong" * 7)) == "UNAUTHENTICATED"
    assert await refused(mutual.address, client(None)) == "UNAUTHENTICATED"
    assert await refused(mutual.address, client(TOKEN, own=None, own_key=None)) == "UNAVAILABLE"
    assert await refused(mutual.address, client(TOKEN, own=stranger, own_key=stranger_key)) == "UNAVAILABLE"


def test_blocking_callers_prove_themselves_too(mutual: ServiceProcess, files: Files) -> None:
    """The claims of a driver cross the same lock."""
    certificate, key = files.client
    security = ClientSecurity(ca_file=files.ca, certificate_file=certificate, private_key_file=key, token=TOKEN)
    with open_stage_scheduler(mutual.address, security) as scheduler:
        claim = scheduler.claim("store", "abc", owner="driver")
        scheduler.commit_claim(claim, location="there")
    with (
        open_stage_scheduler(mutual.address, ClientSecurity(ca_file=files.ca)) as stranger,
        pytest.raises(RemoteSchedulerError),
    ):
        stranger.claim("store", "abc", owner="thief")


def test_the_commands_prove_themselves_by_flags_or_environment(
    mutual: ServiceProcess, files: Files, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never show the token."""
    certificate, key = files.client
    flags = ["--endpoint", mutual.address, "--ca-file", str(files.ca), "--certificate-file", str(certificate)]
    flags += ["--private-key-file", str(key)]
    assert main(["ls", *flags, "--token-file", str(files.token)]) == 0
    assert main(["ls", *flags]) == 1
    monkeypatch.setenv("PENSTOCK_STAGES_TOKEN_FILE", str(files.token))
    assert main(["ls", *flags]) == 0
    printed = capsys.readouterr()
    assert "the token is missing" in printed.err
    assert TOKEN not in printed.out + printed.err


async def test_nobody_takes_or_ends_the_claim_of_another_driver(tls: ServiceProcess, files: Files) -> None:
    """By its name, or by a token near to one's own; the driver itself gets its claim again, by its secret."""
    async with asyncio.timeout(DEADLINE):
        async with RemoteStageScheduler(tls.address, ClientSecurity(ca_file=files.ca)) as scheduler:
            owner = "night#a-secret-of-the-driver"
            mine = await scheduler.claim("store", "taken", owner=owner, lease_seconds=600)
            assert (mine.decision, mine.owner) == (ClaimDecision.COMPUTE, "night")
            for name in (mine.owner, "night#", "night#guessed"):
                seen = await scheduler.claim("store", "taken", owner=name)
                assert (seen.decision, seen.owner, seen.token) == (ClaimDecision.WAIT, "night", 0)
            near = (await scheduler.claim("store", "other", owner="attacker")).token
            for token in range(near - 1_000, near):
                forged = dataclasses.replace(mine, token=token)
                await scheduler.release_claim(forged)
            with pytest.raises(ClaimLostError):
                await scheduler.commit_claim(dataclasses.replace(mine, token=near - 1), location="elsewhere")
            await scheduler.renew_claim(mine)
            again = await scheduler.claim("store", "taken", owner=owner, lease_seconds=600)
            assert again.decision is ClaimDecision.COMPUTE
            await scheduler.commit_claim(again, location="here")
            reused = await scheduler.claim("store", "taken", owner="attacker")
            await scheduler.commit_claim(reused, location="elsewhere")
            assert (await scheduler.claim("store", "taken", owner="attacker")).location == "here"


async def test_a_driver_without_a_secret_waits_until_its_claim_runs_out() -> None:
    """Nobody could tell it from another that gives its name."""
    async with LocalStageScheduler() as scheduler:
        await scheduler.claim("store", "abc", owner="night")
        assert (await scheduler.claim("store", "abc", owner="night")).decision is ClaimDecision.WAIT
