"""The code of the how-to and migration pages does what the pages say."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from integration_tests.docs_pages import POLICIES, WRITTEN, actions, blocks, name_of, runs
from penstock.emulator.testing import OtherClock, running_emulator
from penstock.rpc.testing import service_process
from penstock.telemetry.testing import wait_until

EXPECTED = re.compile(r"^\s*print\(.*\)  # (.*)$", re.MULTILINE)
SUBMIT = (
    "--master local[2] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 "
    "--conf spark.sql.session.timeZone=UTC --conf spark.ui.showConsoleProgress=false pyspark-shell"
)


RUNNING = [page for page in WRITTEN if runs(page)]


class Pages:
    """What each page printed: one process runs them all, one after another, with one Spark session and one emulator."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self._folder = folder
        self._process = process

    def result(self, page: Path) -> dict[str, Any]:
        """Wait until the page was run."""
        written = self._folder / f"{name_of(page)}.json"
        wait_until(lambda: written.exists() or self._process.poll() is not None, f"{page} was not run", seconds=550)
        assert written.exists(), (self._folder / "errors").read_text()[-4000:]
        found: dict[str, Any] = json.loads(written.read_text())
        return found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """All that run."""
    folder = tmp_path_factory.mktemp("how-to")
    token = folder / "token"
    token.write_text("a-secret-of-32-characters-or-more")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PENSTOCK_"))}
    environment |= {
        "AWS_REGION": "eu-west-1",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "XDG_STATE_HOME": str(folder / "state"),
        "PENSTOCK_REGISTRY_STORE": f"sqlite:///{folder / 'registry.db'}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": SUBMIT,
    }
    with ExitStack() as stack:
        quick: dict[str, Any] = {"consumer_creation_delay": timedelta(0), "consumer_deletion_delay": timedelta(0)}
        emulator = stack.enter_context(
            running_emulator(
                clock=OtherClock(0),
                region="eu-west-1",
                account_id="123456789012",
                companions=("glue", "sqs", "dynamodb"),
                **quick,
            )
        )
        environment |= {
            "AWS_ENDPOINT_URL_KINESIS": emulator.endpoint_url,
            "AWS_ENDPOINT_URL_DYNAMODB_STREAMS": emulator.endpoint_url,
            "AWS_ENDPOINT_URL_FIREHOSE": emulator.endpoint_url,
            **{f"AWS_ENDPOINT_URL_{name.upper()}": emulator.endpoints[name] for name in ("glue", "sqs", "dynamodb")},
        }
        hosts = {}
        for name, module in {
            "registry.internal:50051": "consumer_registry",
            "reader.internal:50052": "shard_reader",
            "sink.internal:50053": "sink_gateway",
        }.items():
            command = ["serve", "--token-file", str(token)]
            service = service_process(f"penstock.services.{module}", command, environment)
            hosts[name] = stack.enter_context(service).address
        environment["PENSTOCK_HOW_TO_HOSTS"] = json.dumps(hosts)
        driver = [sys.executable, "-m", "integration_tests.how_to_driver", str(folder), *map(str, RUNNING)]
        with (folder / "errors").open("wb") as errors:
            process = stack.enter_context(subprocess.Popen(driver, env=environment, stdout=errors, stderr=errors))
        stack.callback(process.terminate)
        yield Pages(folder, process)
        stack.callback(process.wait)


@pytest.mark.parametrize("page", RUNNING, ids=name_of)
def test_a_page_does_what_it_says(page: Path, pages: Pages) -> None:
    """All blocks in order; each `print` prints what the comment behind it says."""
    found = pages.result(page)
    if found["error"]:
        pytest.fail(found["error"][-4000:])
    printed = [line for line in found["printed"].splitlines() if line and not line.startswith(("|", "+"))]
    ran = "\n".join(code for marker, code in blocks(page) if not marker)
    assert printed == EXPECTED.findall(ran)


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_every_block_compiles(page: Path) -> None:
    """Those too that need a platform which is not here; these say which."""
    for marker, code in blocks(page):
        compile(code, str(page), "exec")
        assert marker in ("", "pytest") or re.fullmatch(r"not run: .+", marker), marker


# What the seed of the pages, and boto3 in them, call besides.
BESIDES = {"CreateStream", "DescribeStream", "PutRecord", "SplitShard", "DeleteStream"}


@pytest.mark.parametrize("page", RUNNING, ids=name_of)
def test_a_page_calls_only_what_the_policies_allow(page: Path, pages: Pages) -> None:
    """Counted by the emulator: the page on IAM names each operation."""
    called = {f"kinesis:{one}" for one in pages.result(page)["calls"]["calls"] if one not in BESIDES}
    assert called - set().union(*map(actions, POLICIES)) == set()
