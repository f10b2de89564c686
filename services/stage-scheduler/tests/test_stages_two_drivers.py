"""Two driver processes and one service: who computes when one of them is killed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.operator_attributes import ClaimDecision, open_stage_scheduler
from penstock.rpc.testing import service_process

MODULE = "penstock.services.stage_scheduler"
LEASE_SECONDS = 2.0
DRIVER = f"""
import sys
from penstock.operator_attributes import open_stage_scheduler

with open_stage_scheduler(sys.argv[1]) as scheduler:
    claim = scheduler.claim("store", "abc", owner="first", lease_seconds={LEASE_SECONDS})
    print(claim.decision.value, flush=True)
    if sys.stdin.readline():
        scheduler.commit_claim(claim, location="of the first", rows=5)
        print("committed", flush=True)
"""


@contextmanager
def driver(address: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the claim until the test lets it commit, or kills it."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "compute"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_driver_computes_what_a_killed_one_had_claimed() -> None:
    """While it lives its claim is renewed, beyond the lease; after kill -9 the claim runs out, and the other has it."""
    with service_process(MODULE, ["serve"]) as service, open_stage_scheduler(service.address) as second:
        with driver(service.address) as first:
            alive = second.claim("store", "abc", owner="second", wait_seconds=LEASE_SECONDS * 1.5)
            assert (alive.decision, alive.owner) == (ClaimDecision.WAIT, "first")
            first.kill()
            first.wait(20)
        mine = second.claim("store", "abc", owner="second", wait_seconds=15)
        assert mine.decision is ClaimDecision.COMPUTE
        assert mine.token > alive.token
