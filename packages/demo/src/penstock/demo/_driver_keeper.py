"""The Spark driver as a child: started, awaited, and started again when it was killed and that is wanted."""

import time
from collections.abc import Callable
from pathlib import Path

from penstock.demo._children import Child
from penstock.demo._report import StageTime
from penstock.demo._settings import DemoSettings
from penstock.demo._world import World
from penstock.demo.errors import ChildEndedError, DemoError

_READY_SECONDS = 300.0
_LOOK_EVERY_SECONDS = 0.25
_MAX_STARTS = 4


class DriverKeeper:
    """Keeps one Spark driver running."""

    def __init__(self, world: World, job_file: Path, settings: DemoSettings, say: Callable[[str], object]) -> None:
        self._world = world
        self._job_file = job_file
        self._settings = settings
        self._say = say
        self._live_at = time.monotonic()
        self.starts = 0
        """How often it was started."""
        self.child = self._start()

    def _start(self) -> Child:
        self.starts += 1
        return self._world.start("spark-driver", "penstock.demo.driver", str(self._job_file))

    def check(self) -> None:
        """Start it again when it was killed.

        Raises:
            ChildEndedError: it is gone and must not be, or was gone too often.
        """
        code = self.child.poll()
        if code is None:
            return
        self.child.end()
        # A driver that ends by itself found an error, and would find it again.
        was_killed = code < 0
        if not was_killed or not self._settings.restarts_driver or self.starts >= _MAX_STARTS:
            raise ChildEndedError(self.child.name, code, self.child.log)
        self._say(f"the Spark driver was killed by signal {-code}: starting it again from its checkpoint")
        self.child = self._start()

    def await_live(self) -> list[StageTime]:
        """Wait until the live stage is deployed. Gives the stages before it.

        Raises:
            ChildEndedError: it ended before.
            DemoError: it takes too long.
        """
        deadline = time.monotonic() + _READY_SECONDS
        while "live" not in self.child.latest:
            if time.monotonic() > deadline:
                raise DemoError(f"the live stage did not start; see {self.child.log}")
            self.check()
            time.sleep(_LOOK_EVERY_SECONDS)
        self._live_at = time.monotonic()
        return [StageTime(**stage) for stage in self.child.latest["stages"] if stage["state"] != "running"]

    def live_seconds(self) -> float:
        """Seconds since the live stage was first deployed."""
        return time.monotonic() - self._live_at
