"""What holds for the tests of all packages: the order of their files, and JVMs that are quick to start."""

import os

import pytest
from hypothesis import settings

# Seconds of a file alone on two quiet cores. With `--dist loadfile` a file is one worker's: the last one to begin
# decides when all is done, so it must be a short one. A file that takes more than half a minute belongs here.
SECONDS = {
    "test_spark_exactly_once.py": 110,
    "test_demo.py": 100,
    "test_spark_killed_runs.py": 80,
    "test_spark_cluster.py": 60,
    "test_docs_how_to.py": 60,
    "test_spark_kinesis.py": 50,
    "test_spark_connect.py": 50,
    "test_docs_tutorial.py": 60,
    "test_spark_walk.py": 40,
    "test_spark_same_rows.py": 40,
    "test_spark_shared_stages.py": 40,
    "test_spark_automatic.py": 35,
    "test_release.py": 50,
    "test_release_compose.py": 35,
    "test_spark_bounded_reads.py": 35,
    "test_spark_secrets.py": 30,
    "test_spark_partition_windows.py": 30,
    "test_reader_service_tail.py": 30,
    "test_console_browser.py": 30,
    "test_console_attacks.py": 45,
    "test_spark_migration_runs.py": 40,
    "test_spark_continuity_streams.py": 90,
    "test_spark_continuity_retention.py": 60,
    "test_spark_exact_times.py": 70,
    "test_spark_read_push_down.py": 70,
    "test_spark_continuity_bounded.py": 80,
    "test_spark_continuity_upgrade.py": 60,
    "test_continuity_model.py": 60,
    "test_reader_unkind.py": 50,
}
# The JVMs of tests live for minutes at most: they gain nothing from the second compiler, nor from several threads that
# collect garbage, which take a quarter of the processor time.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


# How long an example takes says how busy the machine is.
settings.register_profile("usual", deadline=None)
settings.load_profile("usual")
# For `.ci/run`, by `--hypothesis-profile=short`: properties that ask for no number of examples of their own try fewer.
settings.register_profile("short", settings.get_profile("usual"), max_examples=30)


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
    items.sort(key=lambda item: -SECONDS.get(item.path.name, 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show how each test failed that was tried again: whether it passed then or not, something is wrong with it."""
    reports = terminalreporter.getreports("rerun")
    if reports:
        terminalreporter.section("tried again")
    for report in reports:
        terminalreporter.write_sep("_", report.nodeid)
        terminalreporter.write_line(report.longreprtext)
