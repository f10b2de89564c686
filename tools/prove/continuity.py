"""Random histories of a stream, its readers and its callers: every record comes once, or a loss is named."""

from __future__ import annotations

import logging
import random
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from integration_tests.continuity_model import ContinuityMachine, machine, try_machine
from tools.prove.continuity_breaks import BREAKS

if TYPE_CHECKING:
    import argparse
    from contextlib import AbstractContextManager

SUMMARY = "every record is delivered exactly once, or an error or a counted loss names shard and range"

EXAMPLES = 4
"""Histories of one seed: few, so that failures are reported soon."""
STEPS = 30
SELF_CHECK_SEEDS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--minutes", type=float, default=1.0, help="how long new histories are tried; default: 1")
    parser.add_argument("--seed", type=int, help="try this seed only, as a failure names it")
    parser.add_argument("--profile", choices=["kind", "hostile", "both"], default="both", help="of the emulator")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of a history; default: {STEPS}")
    parser.add_argument(
        "--self-check", action="store_true", help="break the rule in several ways, and see each of them found"
    )


def run(arguments: argparse.Namespace) -> bool:
    """Try histories until the time is over or one fails."""
    # Losses and retries are what is tried: their warnings would bury the proof's own lines.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    logging.getLogger("penstock").propagate = False
    profiles = ["kind", "hostile"] if arguments.profile == "both" else [arguments.profile]
    if arguments.self_check:
        return _self_check(profiles, arguments.steps, arguments.seed)
    deadline = time.monotonic() + arguments.minutes * 60
    machines = {profile: machine(profile) for profile in profiles}
    tried = 0
    while True:
        seed = random.randrange(10**9) if arguments.seed is None else arguments.seed
        for profile in profiles:
            began = time.monotonic()
            if not _holds(machines[profile], seed, arguments.steps):
                return False
            tried += 1
            counts = machines[profile].counts
            told = ", ".join(f"{name} {counts.get(name, 0)}" for name in ("begin", "rows", "over", "losses"))
            print(f"{profile:8} seed {seed:9}: held, {time.monotonic() - began:.0f} s (so far {told})", flush=True)
        if arguments.seed is not None or time.monotonic() >= deadline:
            print(f"continuity holds: {tried} seeds of {EXAMPLES} histories of {arguments.steps} steps")
            return True


def _holds(tried: type[ContinuityMachine], seed: int, steps: int, *, is_told: bool = True) -> bool:
    error = try_machine(tried, seed=seed, examples=EXAMPLES, steps=steps)
    if error is None:
        return True
    if is_told:
        print("\n".join(tried.failures[0] if tried.failures else ["no step failed"]))
        print(f"{type(error).__name__}: {error}"[:2000])
        print(
            f"continuity does not hold: hatch run prove continuity --profile {tried.PROFILE} --seed {seed} "
            f"--steps {steps}",
            flush=True,
        )
    return False


def _self_check(profiles: list[str], steps: int, seed: int | None) -> bool:
    """Break the rule at single points: each has to be found."""
    missed = []
    for name, broken in {"nothing": nullcontext, **BREAKS}.items():
        found = _first_failure(broken(), profiles, steps, 0 if seed is None else seed, 1 if name == "nothing" else None)
        print(f"{name:60} {found or 'not found'}", flush=True)
        if (found is None) is not (name == "nothing"):
            missed.append(name)
    if missed:
        print(f"the model does not tell: {', '.join(missed)}")
    return not missed


def _first_failure(
    broken: AbstractContextManager[None], profiles: list[str], steps: int, first: int, seeds: int | None
) -> str | None:
    with broken:
        for seed in range(first, first + (seeds or SELF_CHECK_SEEDS)):
            for profile in profiles:
                tried = machine(profile)
                if not _holds(tried, seed, steps, is_told=False):
                    last = tried.failures[0][-1].split("  ")[-1] if tried.failures else ""
                    return f"found by {profile} seed {seed}: {last[:100]}"
    return None
