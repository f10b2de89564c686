"""Everything that is owned stays with its owner, or goes to one other, whatever is killed, frozen or set back in time.

Queries read a stream into which clients of a gateway write all the time; consumers are leased, shards shared among a
fleet, results claimed. Under a seeded schedule services, drivers and clients are killed, frozen and started again with
nothing in memory, clocks step, and drivers follow each other on one checkpoint. The table at the end says what held.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.registration import AcquireRequest, ConflictPolicy, open_registry
from tools.prove import ownership_checks as checks
from tools.prove.ownership_checks import judge, table
from tools.prove.ownership_clients import PATIENCE
from tools.prove.ownership_troubles import TROUBLES, Schedule, hand_over
from tools.prove.ownership_world import SETTLE_SECONDS, STREAM, World, running_world

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

SUMMARY = "nothing owned is lost or shared: leases, sessions, fleets, gateways and claims through pauses and kills"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--minutes", type=float, default=30.0, help="how long troubles come; default: 30")
    parser.add_argument("--scale", type=float, default=1.0, help="of freezes, which last 5 to 120 s; default: 1")
    parser.add_argument("--seed", type=int, help="of the schedule, as a run names it; default: random")
    parser.add_argument("--profile", choices=["kind", "hostile"], default="hostile", help="of the emulator")
    parser.add_argument("--log", type=Path, help="file for what all processes say, and each trouble")
    parser.add_argument("--folder", type=Path, help="for all files, to be kept; default: a temporary one")
    parser.add_argument("--only", choices=sorted(TROUBLES), action="append", help="these troubles; default: all")
    parser.add_argument(
        "--self-check", action="store_true", help="without troubles: break each rule by hand, and see it reported"
    )


def run(arguments: argparse.Namespace) -> bool:
    """Let troubles come and go, and see what held."""
    # Children outlive a process that is ended without a word.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}, profile {arguments.profile}, freezes x {arguments.scale:g}", flush=True)
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ownership-")))
        folder.mkdir(parents=True, exist_ok=True)
        world = stack.enter_context(running_world(folder, arguments.profile, seed, arguments.log))
        if world.faketime is None:
            print("no clock steps: libfaketime is missing (apt-get install libfaketime)", flush=True)
        else:
            print("clocks of services step by libfaketime; clocks of drivers and clients do not", flush=True)
        world.wait_until_live()
        if arguments.self_check:
            return _self_check(world)
        names = arguments.only or [name for name in TROUBLES if name != "clock" or world.faketime is not None]
        Schedule(world, names, seed, arguments.minutes * 60, arguments.scale).run()
        world.settle(SETTLE_SECONDS)
        world.end()
        verdicts = judge(world.evidence())
    print(", ".join(f"{count} x {name}" for name, count in sorted(world.troubles.items())))
    print(table(verdicts))
    holds = not any(one.faults for one in verdicts)
    print("ownership holds" if holds else f"ownership does not hold: --seed {seed}", flush=True)
    return holds


def _self_check(world: World) -> bool:
    """Break each rule at one point: each break must be reported."""

    def break_all(names: Iterable[str]) -> None:
        for check in names:
            print(f"broken: {check}", flush=True)
            BREAKS[check](world)

    break_all(check for check in BREAKS if check not in _AT_THE_END)
    world.wait_until_live()
    world.settle(SETTLE_SECONDS)
    world.end(lambda: break_all([checks.LEFT]))
    break_all(check for check in _AT_THE_END if check != checks.LEFT)
    verdicts = judge(world.evidence())
    print(table(verdicts))
    missed = [check for check in BREAKS if not any(one.faults and one.check.endswith(check) for one in verdicts)]
    print(f"not reported: {', '.join(missed)}" if missed else "each break is reported", flush=True)
    return not missed


# Breaks, for the self-check


def _forge(world: World, client: str, **event: object) -> None:
    with (world.folder / f"{client}.jsonl").open("a") as file:
        print(json.dumps({"at": time.monotonic(), **event}), file=file)


def _break_records(world: World) -> None:
    next((world.folder / "table" / "polling").glob("*.json")).unlink()


def _break_same_rows(world: World) -> None:
    (world.folder / "table" / "fleet" / "1.changed").write_text("[]")


def _break_acknowledged(world: World) -> None:
    _forge(world, "writer", what="acknowledged", ids=["nobody-wrote-this"])


def _break_live(world: World) -> None:
    client: Any = world.emulator.client()
    consumer = next(one for one in world.consumers() if one["ConsumerName"] == "fleet")
    client.deregister_stream_consumer(ConsumerARN=consumer["ConsumerARN"])


def _break_rivals(world: World) -> None:
    asked_at = time.monotonic()
    with open_registry(endpoint=world.services["registry 1"].address, patience=PATIENCE) as registry:
        registry.acquire(
            AcquireRequest(
                stream_name=STREAM, consumer_name="held-1", job_id="thief", conflict_policy=ConflictPolicy.TAKE_OVER
            )
        )
    _forge(world, "thief", what="let in", consumer="held-1", asked_at=asked_at)


def _break_lost(world: World) -> None:
    # By force its lease can be ended indeed; then a rival may be let in, which would explain it.
    _forge(world, "holder", what="lost", consumer="held-0", reason="nobody has it")


def _break_claims(world: World) -> None:
    _forge(world, "claimer 1", what="committed", fingerprint="result-0", location="elsewhere")


def _break_claimers(world: World) -> None:
    _forge(world, "claimer 1", what="computing", fingerprint="result-0", token=0)
    _forge(world, "claimer 1", what="claim lost", fingerprint="result-0")


def _break_handovers(world: World) -> None:
    # What was deregistered may have ended its query.
    world.wait_until_live()
    hand_over(world, "fleet", 0, random.Random(0), lambda new: new.driver.kill())
    world.wait_until_live()


def _break_queries(world: World) -> None:
    world.lives["local"].driver.kill()


def _break_left(world: World) -> None:
    client: Any = world.emulator.client()
    client.register_stream_consumer(StreamARN=world.stream_arn, ConsumerName="nobody")


BREAKS: dict[str, Callable[[World], None]] = {
    checks.LIVE: _break_live,
    checks.RIVALS: _break_rivals,
    checks.LOST: _break_lost,
    checks.HANDOVERS: _break_handovers,
    checks.QUERIES: _break_queries,
    checks.LEFT: _break_left,
    checks.RECORDS: _break_records,
    checks.SAME_ROWS: _break_same_rows,
    checks.ACKNOWLEDGED: _break_acknowledged,
    checks.CLAIMS: _break_claims,
    checks.CLAIMERS: _break_claimers,
}
"""By the check that has to tell it."""
_AT_THE_END = (
    checks.LEFT,
    checks.RECORDS,
    checks.SAME_ROWS,
    checks.ACKNOWLEDGED,
    checks.LOST,
    checks.CLAIMS,
    checks.CLAIMERS,
)
