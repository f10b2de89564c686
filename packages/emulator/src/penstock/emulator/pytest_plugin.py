"""Fixtures for tests that need Kinesis; pytest finds them as soon as the package is installed.

A project's own fixtures of the same names win, as pytest's rules have it. ``-p no:penstock-emulator`` switches the
plugin off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .testing import RunningEmulator

_MARKER = "kinesis_emulator"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, for those who are strict about markers."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(**options): fields of penstock.emulator.EmulatorConfig for the kinesis_emulator of this test.",
    )


@pytest.fixture(scope="session")
def kinesis_emulator_options() -> dict[str, Any]:
    """Fields of `EmulatorConfig` for all emulators of these fixtures; override it in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def kinesis_emulator_session(kinesis_emulator_options: dict[str, Any]) -> Iterator[RunningEmulator]:
    """One emulator for the whole session, on a thread; its streams outlive each test."""
    # Imported only where it is used: what this takes, all other test runs would have to pay.
    from .testing import running_emulator

    with running_emulator(**kinesis_emulator_options) as emulator:
        yield emulator


@pytest.fixture
def kinesis_emulator(
    request: pytest.FixtureRequest, kinesis_emulator_options: dict[str, Any]
) -> Iterator[RunningEmulator]:
    """A new, empty emulator on a thread; the marker `kinesis_emulator` gives it options of its own, `clock` too."""
    from .testing import running_emulator

    markers = [marker.kwargs for marker in request.node.iter_markers(_MARKER)]
    options = dict(kinesis_emulator_options)
    # The nearest marker comes first, and has the last word.
    for kwargs in reversed(markers):
        options |= kwargs
    with running_emulator(**options) as emulator:
        yield emulator


@pytest.fixture
def kinesis_client(kinesis_emulator: RunningEmulator) -> Iterator[Any]:
    """A boto3 client of `kinesis_emulator`."""
    client = kinesis_emulator.client()
    yield client
    client.close()
