"""Claims of other drivers, on the real socket."""

import asyncio
import dataclasses

import pytest

from penstock.operator_attributes import ClaimDecision, LocalStageScheduler, RemoteStageScheduler
from penstock.operator_attributes.errors import ClaimLostError
from penstock.rpc.testing import service_process

MODULE = "penstock.services.stage_scheduler"
DEADLINE = 60


async def test_no_driver_takes_or_ends_the_claim_of_another() -> None:
    """By its name, or by a token near to one's own; the driver itself gets its claim again, by its secret."""
    with service_process(MODULE, ["serve"]) as service:
        async with asyncio.timeout(DEADLINE), RemoteStageScheduler(service.address) as scheduler:
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
    """It could not be distinguished from another driver of that name."""
    async with LocalStageScheduler() as scheduler:
        await scheduler.claim("store", "abc", owner="night")
        assert (await scheduler.claim("store", "abc", owner="night")).decision is ClaimDecision.WAIT
