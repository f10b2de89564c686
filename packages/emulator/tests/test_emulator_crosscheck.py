"""The same scenarios for this emulator and for other servers; `crosscheck_differences.py` lists where they differ."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import urllib.request
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.config import Config
from crosscheck_differences import DIFFERENCES
from kinesis_local import running_kinesis_local

from penstock.emulator._state.quotas import OPERATION_LIMITS
from penstock.emulator.testing import kinesis_client, running_emulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONFIG = Config(parameter_validation=False, retries={"total_max_attempts": 1}, read_timeout=20)

_MOTO = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.disable()
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://%s:%s" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


def load_scenarios() -> dict[str, Callable[[Any], Any]]:
    # The tests are not a package: modules beside them have to be found by their path.
    for name in ("crosscheck_tools", "crosscheck_polling", "crosscheck_shards", "crosscheck_limits"):
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    scenarios: dict[str, Callable[[Any], Any]] = sys.modules["crosscheck_tools"].SCENARIOS
    return scenarios


SCENARIOS = load_scenarios()


@pytest.fixture(scope="module")
def ours() -> Iterator[Callable[[str], Any]]:
    """Our answer in a scenario, found once for all peers."""
    # The rates of control operations would only make the scenarios slow.
    rates = dict.fromkeys(OPERATION_LIMITS)
    with running_emulator(tls=False, consumer_creation_delay=timedelta(0), operation_limits=rates) as emulator:
        client = emulator.client(config=CONFIG)
        yield cache(lambda name: SCENARIOS[name](client))


@pytest.fixture(scope="module")
def moto_server() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        assert endpoint, "moto's server does not start: is moto[server] installed?"
        yield endpoint
        process.kill()


@pytest.fixture
def moto(moto_server: str) -> Any:
    """Without what another try of a scenario has left there."""
    with urllib.request.urlopen(urllib.request.Request(f"{moto_server}/moto-api/reset", method="POST")) as answer:
        assert answer.status == 200
    return kinesis_client(moto_server, config=CONFIG)


@pytest.fixture(scope="module")
def kinesis_local() -> Iterator[Any]:
    with running_kinesis_local() as endpoint:
        yield kinesis_client(endpoint, config=CONFIG)


def compare(name: str, peer_name: str, ours: Callable[[str], Any], peer: Any) -> None:
    """The answers agree, unless `crosscheck_differences.py` says that they do not."""
    mine = ours(name)
    try:
        others = SCENARIOS[name](peer)
    except Exception as error:
        # Where it fails in the middle, that is its answer.
        others = f"{type(error).__name__}: {error}"
    if peer_name in DIFFERENCES.get(name, ("",))[0]:
        assert mine != others, f"crosscheck_differences.py says that {peer_name} answers otherwise"
    else:
        assert mine == others


@pytest.mark.parametrize("name", SCENARIOS)
def test_moto_answers_the_same(name: str, ours: Callable[[str], Any], moto: Any) -> None:
    """moto's server, in every scenario that is not listed under its name."""
    compare(name, "moto", ours, moto)


@pytest.mark.parametrize("name", SCENARIOS)
def test_kinesis_local_answers_the_same(name: str, ours: Callable[[str], Any], kinesis_local: Any) -> None:
    """kinesis-local, in every scenario that is not listed under its name."""
    compare(name, "kinesis-local", ours, kinesis_local)
