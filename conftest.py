"""What holds for all tests: which process runs which file and when, and JVMs that are quick to start."""

import ctypes
import faulthandler
import gc
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tools import leave_nothing, quick_spark

# Of each file that takes long: how many seconds, and how many of the processor, by `hatch run test --record-durations`.
# A file is one process's: the last one to begin decides when all is done, so it must be a short one.
DURATIONS = Path(__file__).with_name("integration_tests") / "durations.json"
RECORDED_SECONDS = 5.0
# A file that keeps a processor busy for this share of its time is one of the busy.
BUSY = 0.4
# So many processes run the busy files. They are as many as the processors that the suite is written for.
BUSY_WORKERS = 2
# So many processes, those among them, run the files that share a session of Spark: each starts a JVM of its own for it.
SPARK_WORKERS = 3
SPARK = "spark: SparkSession"
# A test's timeout is an exception in it, raised once: nothing ends a teardown that waits for ever after it, or a call
# that lets no signal through. So many seconds later all threads are shown, and the process ends.
STUCK_SECONDS = 60.0
STDERR = pytest.StashKey[int]()
# What a machine of CI may not have, and nobody can install: the only reasons for which tests are skipped there.
MISSING = ("this machine has no IPv6", "needs a name space of its own")

# What the tests of a package share is imported by its name, which no other folder has: pytest imports each test file by
# itself.
sys.path.extend(str(folder) for folder in Path(__file__).parent.glob("*/*/tests"))

# How long an example takes says how busy the machine is.
settings.register_profile("usual", deadline=None, max_examples=30)
settings.load_profile("usual")
# For each night, by `--hypothesis-profile=long`: properties that ask for no number of examples of their own try more.
settings.register_profile("long", settings.get_profile("usual"), max_examples=300)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what this file asks for."""
    parser.addoption("--record-durations", action="store_true", help=f"write the seconds of long files to {DURATIONS}")


def pytest_configure(config: pytest.Config) -> None:
    """Let all JVMs that tests start, and the Pythons that these start, be quick to start, and none outlive the run."""
    quick_spark.use()
    if not hasattr(config, "workerinput"):
        # The workers of xdist are started later, and have the mark.
        leave_nothing.watch()
    if config.getoption("--record-durations") and sys.platform == "linux":
        # Linux's PR_SET_CHILD_SUBREAPER: what outlives the process that started it becomes a child of this one.
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        threading.Thread(target=_reap_orphans, daemon=True).start()
    # While a test runs, what is written to the file of this number is captured.
    config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Bound the phase."""
    _bound(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Bound the phase."""
    _bound(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Bound the phase, and what follows it."""
    _bound(item)


def _bound(item: pytest.Item) -> None:
    """Give the phase that begins its time. Anew for each, as pytest takes the bound away after a failure."""
    marker = item.get_closest_marker("timeout")
    timeout = float(marker.args[0] if marker else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(timeout + STUCK_SECONDS, exit=True, file=item.config.stash[STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among thousands of tests, neither while they are found nor after: it takes long each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; leave out what only the emulator's kind profile does, on another one."""
    if config.getoption("--kinesis-profile", "kind") != "kind":
        left_out = [item for item in items if item.get_closest_marker("kind_kinesis")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    durations = _durations()
    items.sort(key=lambda item: -durations.get(item.path.name, (0, 0))[0])


class BusyAndWaiting(LoadFileScheduling):
    """Some processes run the files that keep processors busy, longest first, and the others those that wait.

    Most tests wait: for a lease to end, for a service that was frozen. With one queue for all, either processors stand
    idle while each process waits, or more JVMs run than there are processors.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        durations = _durations()
        self.busy = {name for name, (seconds, processor) in durations.items() if processor > BUSY * seconds}

    def _is_for(self, scope: str, node: WorkerController) -> bool:
        number = int(node.gateway.id.removeprefix("gw")) % len(node.config.option.tx)
        if _shares_spark(node.config.rootpath / scope):
            return number < SPARK_WORKERS
        return (Path(scope).name in self.busy) == (number < BUSY_WORKERS)

    def remove_node(self, node: WorkerController) -> str | None:
        """Give what a process leaves to the others, without the test that it ended in: each of them would end, too."""
        left: dict[str, dict[str, bool]] = self.assigned_work.pop(node)
        waiting = [(tests, test) for tests in left.values() for test, is_done in tests.items() if not is_done]
        if not waiting:
            return None
        tests, ended_in = waiting[0]
        tests[ended_in] = True
        self.workqueue.update({scope: tests for scope, tests in left.items() if not all(tests.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return ended_in

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = next((scope for scope in self.workqueue if self._is_for(scope, node)), None)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


@cache
def _shares_spark(file: Path) -> bool:
    """Whether its tests ask for the session of Spark that a process has."""
    return SPARK in file.read_text()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Let the files be given to processes by what they need."""
    return BusyAndWaiting(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI no file is skipped as a whole."""
    report = yield
    _refuse_skipping(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI nothing is skipped unnoticed."""
    report = yield
    if report.when == "teardown" and item.config.getoption("--record-durations"):
        report.user_properties.append(("processor", _processor_seconds()))
    if not hasattr(report, "wasxfail"):
        _refuse_skipping(report)
    return report


def _refuse_skipping(report: pytest.CollectReport | pytest.TestReport) -> None:
    """Let a reason that is not known in CI be a failure there."""
    if report.skipped and os.environ.get("CI") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if not any(known in reason for known in MISSING):
            report.outcome, report.longrepr = "failed", f"skipped in CI: {reason}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what each file takes, and show at once how a test failed in CI, where a run may be cut off."""
    if report.failed and os.environ.get("CI") and "PYTEST_XDIST_WORKER" not in os.environ:
        # What it printed, too: Java says there why a session did not start.
        parts = [report.longreprtext, *(f"-- {name} --\n{content}" for name, content in report.sections)]
        print(f"\n== FAILED: {report.nodeid} ==", *parts, sep="\n", file=sys.stderr, flush=True)
    taken = _taken[Path(report.nodeid.partition("::")[0]).name]
    taken[0] += report.duration
    if report.when == "teardown":
        properties: dict[str, Any] = dict(report.user_properties)
        taken[1] += properties.get("processor", 0.0)


_taken: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
_used: dict[str, float] = {}


def _reap_orphans() -> None:
    """Wait for the processes that this one has inherited, so that their seconds are counted and tests see them gone.

    Those that this process started itself are left to the code that started them.
    """
    this = psutil.Process()
    below = set[int]()
    while True:
        for process in this.children(recursive=True):
            with suppress(psutil.Error, ChildProcessError):
                if process.ppid() != this.pid:
                    below.add(process.pid)
                elif process.pid in below and process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, 0)
                    below.remove(process.pid)
        time.sleep(1)


def _processor_seconds() -> float:
    """Seconds of a processor that this process and all below it used since this was asked last."""
    this = psutil.Process()
    used = 0.0
    for process in [this, *this.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:  # It has just ended.
            continue
        used += times.user + times.system + times.children_user + times.children_system
    since, _used["all"] = used - _used.get("all", 0.0), used
    return max(0.0, since)


def _durations() -> dict[str, tuple[float, float]]:
    """Seconds, and seconds of a processor, of each file that takes long."""
    return {name: (seconds, processor) for name, (seconds, processor) in json.loads(DURATIONS.read_text()).items()}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the durations, where that was asked for; with several processes in the one that hears of all."""
    if session.config.getoption("--record-durations") and not hasattr(session.config, "workerinput"):
        known: dict[str, Any] = _durations() | {name: (round(one), round(two)) for name, (one, two) in _taken.items()}
        long = {name: taken for name, taken in known.items() if taken[0] >= RECORDED_SECONDS}
        lines = [
            f"  {json.dumps(name)}: {json.dumps(taken)}"
            for name, taken in sorted(long.items(), key=lambda one: -one[1][0])
        ]
        DURATIONS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
