"""Fixtures for tests that need Kinesis; pytest finds them as soon as the package is installed.

A project's own fixtures of the same names win, as pytest's rules have it. ``-p no:penstock-emulator`` switches the
plugin off.
"""

from __future__ import annotations

import os
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.emulator._config import Behaviour
    from penstock.emulator.testing import RunningEmulator

_MARKER = "kinesis_emulator"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose the profile of the emulators."""
    group = parser.getgroup("kinesis", "Kinesis emulator")
    group.addoption(
        "--kinesis-profile",
        choices=("kind", "hostile"),
        default="kind",
        help="what the emulators do where Kinesis leaves things open (default: kind)",
    )
    group.addoption("--kinesis-seed", type=int, default=None, metavar="N", help="seed of the profile (default: random)")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and draw the seed of a hostile run that has none."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(**options): fields of penstock.emulator.EmulatorConfig for the kinesis_emulator of this test.",
    )
    if config.option.kinesis_profile == "hostile" and config.option.kinesis_seed is None:
        # Drawn once: the workers of pytest-xdist get it too, and the header names it.
        config.option.kinesis_seed = SystemRandom().getrandbits(32)
    if config.option.kinesis_profile != "kind":
        # For emulators that tests start themselves, in this process and in others.
        os.environ["PENSTOCK_EMULATOR_PROFILE"] = config.option.kinesis_profile
        os.environ["PENSTOCK_EMULATOR_SEED"] = str(config.option.kinesis_seed)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the options that repeat a hostile run."""
    if config.option.kinesis_profile == "kind":
        return None
    return f"kinesis: --kinesis-profile {config.option.kinesis_profile} --kinesis-seed {config.option.kinesis_seed}"


@pytest.fixture(scope="session")
def kinesis_behaviour(pytestconfig: pytest.Config) -> Behaviour:
    """The `Behaviour` of all emulators of these fixtures, from --kinesis-profile and --kinesis-seed; may be overridden.

    The marker and `kinesis_emulator_options` have the last word where they name `behaviour`.
    """
    from penstock.emulator._config import Behaviour

    return Behaviour.profile(pytestconfig.option.kinesis_profile, seed=pytestconfig.option.kinesis_seed)


@pytest.fixture(scope="session")
def kinesis_emulator_options() -> dict[str, Any]:
    """Fields of `EmulatorConfig` for all emulators of these fixtures; override it in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def kinesis_emulator_session(
    kinesis_emulator_options: dict[str, Any], kinesis_behaviour: Behaviour
) -> Iterator[RunningEmulator]:
    """One emulator for the whole session, on a thread; its streams outlive each test."""
    # Imported only where it is used: what this takes, all other test runs would have to pay.
    from penstock.emulator.testing import running_emulator

    with running_emulator(**{"behaviour": kinesis_behaviour, **kinesis_emulator_options}) as emulator:
        yield emulator


@pytest.fixture
def kinesis_emulator(
    request: pytest.FixtureRequest, kinesis_emulator_options: dict[str, Any], kinesis_behaviour: Behaviour
) -> Iterator[RunningEmulator]:
    """A new, empty emulator on a thread; the marker `kinesis_emulator` gives it options of its own, `clock` too."""
    from penstock.emulator.testing import running_emulator

    markers = [marker.kwargs for marker in request.node.iter_markers(_MARKER)]
    options = {"behaviour": kinesis_behaviour, **kinesis_emulator_options}
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
