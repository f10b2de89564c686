"""What happens in `hatch run prove ownership`: kills, freezes, clock steps, and drivers that follow each other."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.prove import ownership_checks as checks
from tools.prove.ownership_world import QUERIES, START_SECONDS, Life, World

if TYPE_CHECKING:
    from collections.abc import Callable

SHORTEST_FREEZE, LONGEST_FREEZE = 5.0, 120.0
LONGEST_STORE_FREEZE = 20.0
LONGEST_STEP = 240.0
"""Largest step of a clock, in seconds. AWS refuses requests that are signed 5 minutes off."""
END_SECONDS = 120.0
"""Within which a driver that has a successor ends."""


class Schedule:
    """Troubles that come and go, by a seed: one after the other on each of its tracks."""

    def __init__(self, world: World, names: list[str], seed: int, seconds: float, scale: float) -> None:
        self._world = world
        self._seed = seed
        self._deadline = time.monotonic() + seconds
        self._scale = scale
        # Drivers take longest to come back: what happens to them does not wait for the rest, nor the rest for it.
        drivers = [(name, kind) for name in names for kind in TROUBLES[name].targets(world) if kind in QUERIES]
        others = [(name, one) for name in names for one in TROUBLES[name].targets(world) if one not in QUERIES]
        self._tracks = [track for track in (drivers, others, others) if track]

    def run(self) -> None:
        """Until the time is over, and all is well again."""
        tracks = [
            threading.Thread(target=self._run, args=(random.Random(f"{self._seed}-{number}"), track), daemon=True)
            for number, track in enumerate(self._tracks)
        ]
        for track in tracks:
            track.start()
        for track in tracks:
            track.join()

    def _run(self, chance: random.Random, possible: list[tuple[str, str]]) -> None:
        schedule: list[tuple[str, str]] = []
        while time.monotonic() < self._deadline:
            if not schedule:
                schedule = chance.sample(possible, len(possible))
            name, target = schedule.pop()
            longest = LONGEST_STORE_FREEZE if target == "store" else LONGEST_FREEZE
            seconds = SHORTEST_FREEZE * (longest / SHORTEST_FREEZE) ** chance.random() * self._scale
            pause = chance.uniform(1, 6)
            with self._world.busy[target]:
                self._world.log.add(f"trouble: {name} {target} {seconds:.0f} s")
                print(f"{time.strftime('%H:%M:%S')} {name} {target}, {seconds:.0f} s", flush=True)
                self._world.troubles[name] += 1
                TROUBLES[name].inflict(self._world, target, seconds, chance)
                self._world.log.add(f"trouble: {name} {target} is over")
            time.sleep(pause)


@dataclass(frozen=True)
class Trouble:
    """What happens.

    Attributes:
        targets: the names that it may happen to.
        inflict: let it come, last for seconds, and go.
    """

    targets: Callable[[World], list[str]]
    inflict: Callable[[World, str, float, random.Random], None]


def _freeze(world: World, target: str, seconds: float, _chance: random.Random) -> None:
    if target in QUERIES:
        life = world.lives[target]
        with world.frozen(life.driver.name, life.driver):
            time.sleep(seconds)
        return
    of = world.services[target] if target in world.services else world.clients[target]
    with world.frozen(target, of):
        time.sleep(seconds)


def _kill(world: World, target: str, seconds: float, _chance: random.Random) -> None:
    """Kill it, and start it again: what it had in memory is gone."""
    away = min(seconds, 30.0)
    if target in QUERIES:
        # It may have just ended, and been started again.
        world.end_driver(world.lives[target])
        time.sleep(min(away, 5.0))
        _wait_for(world, world.start_driver(target))
    elif target in world.services:
        world.timeline.mark(target, False, time.monotonic())
        world.services[target].kill()
        time.sleep(away)
        world.start_service(target)
    else:
        world.kill_client(target)
        time.sleep(away)
        world.start_client(target)


def _step(world: World, target: str, seconds: float, chance: random.Random) -> None:
    """Let the clock of a service stand wrong, or right again."""
    offset = 0.0 if chance.random() < 0.2 else chance.uniform(-LONGEST_STEP, LONGEST_STEP)
    world.log.add(f"clock: {target} {offset:+.0f} s")
    clock = world.folder / f"{target}.clock"
    part = clock.with_suffix(".part")
    part.write_text(f"{offset:+.0f}")
    part.rename(clock)
    time.sleep(min(seconds, 15.0))


def hand_over(
    world: World,
    kind: str,
    seconds: float,
    chance: random.Random,
    meanwhile: Callable[[Life], None] = lambda _: None,
) -> None:
    """Start a successor while a driver is frozen or slow; then resume the old driver."""
    old = world.lives[kind]
    is_frozen = chance.random() < 0.6
    began = time.monotonic()
    with world.frozen(old.driver.name, old.driver) if is_frozen else old.driver.held(old.driver.queries[0]):
        old.told_at = min(old.told_at, time.monotonic())
        new = world.start_driver(kind)
        _wait_for(world, new)
        meanwhile(new)
        time.sleep(max(0.0, began + seconds - time.monotonic()))
    if not old.driver.wait(END_SECONDS):
        what = f"{old.driver.name} runs {END_SECONDS:.0f} s beside its successor {new.driver.name}"
        world.fault(checks.HANDOVERS, what, old.driver.name)
    world.end_driver(old)
    # The supervisor of drivers may not have seen it yet.
    time.sleep(2)
    if new.has_failed:
        what = f"{new.driver.name} ended, whose predecessor {old.driver.name} was {'frozen' if is_frozen else 'slow'}"
        world.fault(checks.HANDOVERS, what, old.driver.name)
    world.handovers += 1


def _wait_for(world: World, life: Life) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not life.is_live() and life.driver.is_alive():
        if time.monotonic() > deadline:
            what = f"{life.driver.name} gives no rows for {START_SECONDS:.0f} s"
            world.fault(checks.QUERIES, what, life.driver.name)
            return
        time.sleep(0.5)


TROUBLES: dict[str, Trouble] = {
    "freeze": Trouble(
        lambda world: [*QUERIES, *world.services, "store", "writer", "holder", "claimer 1", "claimer 2"], _freeze
    ),
    "kill": Trouble(lambda world: [*QUERIES, *world.services, "writer", "holder", "claimer 1", "claimer 2"], _kill),
    "clock": Trouble(lambda world: list(world.services), _step),
    "handover": Trouble(lambda _: ["fleet"], hand_over),
}
"""By name."""
