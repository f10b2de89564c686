"""What holds for the tests of all packages: the order of their files, and JVMs that are quick to start."""

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# Seconds of each file that takes long, by `hatch run test --record-durations`. With `--dist loadfile` a file is one
# worker's: the last one to begin decides when all is done, so it must be a short one.
DURATIONS = Path(__file__).with_name("integration_tests") / "durations.json"
RECORDED_SECONDS = 5.0
# What CI installs where it may, and what its machine may not have: the only reasons for which it skips tests.
MISSING = (
    *("kinesis-local is not installed", "no chromium", "needs libfaketime"),
    *("this machine has no IPv6", "needs a name space of its own"),
)
# The JVMs of tests live for minutes at most: they gain nothing from the second compiler, nor from several threads that
# collect garbage, which take a quarter of the processor time.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


# How long an example takes says how busy the machine is.
settings.register_profile("usual", deadline=None)
settings.load_profile("usual")
# For `.ci/run`, by `--hypothesis-profile=short`: properties that ask for no number of examples of their own try fewer.
settings.register_profile("short", settings.get_profile("usual"), max_examples=30)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what this file asks for."""
    parser.addoption("--record-durations", action="store_true", help=f"write the seconds of long files to {DURATIONS}")


def pytest_configure() -> None:
    """Let all JVMs that tests start, and those that these start, be quick to start."""
    os.environ["JAVA_TOOL_OPTIONS"] = f"{JAVA} {os.environ.get('JAVA_TOOL_OPTIONS', '')}".strip()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; leave out what only the emulator's kind profile does, on another one."""
    if config.getoption("--kinesis-profile", "kind") != "kind":
        left_out = [item for item in items if item.get_closest_marker("kind_kinesis")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    seconds = json.loads(DURATIONS.read_text())
    items.sort(key=lambda item: -seconds.get(item.path.name, 0))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI nothing is skipped unnoticed: a reason that is not known there is a failure."""
    report = yield
    if (
        report.skipped
        and os.environ.get("CI")
        and not hasattr(report, "wasxfail")
        and isinstance(report.longrepr, tuple)
    ):
        reason = report.longrepr[2]
        if not any(known in reason for known in MISSING):
            report.outcome, report.longrepr = "failed", f"skipped in CI: {reason}"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what each file takes."""
    _seconds[Path(report.nodeid.partition("::")[0]).name] += report.duration


_seconds: defaultdict[str, float] = defaultdict(float)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the durations, where that was asked for; with several processes in the one that hears of all."""
    if session.config.getoption("--record-durations") and not hasattr(session.config, "workerinput"):
        known = json.loads(DURATIONS.read_text()) | {name: round(seconds) for name, seconds in _seconds.items()}
        long = {name: seconds for name, seconds in known.items() if seconds >= RECORDED_SECONDS}
        DURATIONS.write_text(json.dumps(dict(sorted(long.items(), key=lambda one: -one[1])), indent=2) + "\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show how each test failed that was tried again: whether it passed then or not, something is wrong with it."""
    reports = terminalreporter.getreports("rerun")
    if reports:
        terminalreporter.section("tried again")
    for report in reports:
        terminalreporter.write_sep("_", report.nodeid)
        terminalreporter.write_line(report.longreprtext)
