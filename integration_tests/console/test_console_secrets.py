"""Secrets of the console are seen nowhere: in no log, no page, no output and no command line."""

import os
import time
from pathlib import Path

from integration_tests.console_tools import ask
from integration_tests.security_tools import DEADLINE, Service, environment_of
from penstock.emulator.testing import running_emulator
from penstock.rpc.testing import service_process

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "planted/secret+0f1e2d3c4b5a6978",
    "AWS_SESSION_TOKEN": "planted-session-99887766554433221100",
    "PENSTOCK_CONSOLE_TOKEN": "planted-token-5566778899-with-32-characters",
    "PENSTOCK_CONSOLE_SERVICES_TOKEN": "planted-services-token-4433221100",
    "PENSTOCK_CONSOLE_ROLE_EXTERNAL_ID": "planted-external-0011223344",
}
_LOUD = """
import logging, sys
logging.getLogger().setLevel(logging.DEBUG)
from penstock.services.console.__main__ import main
sys.exit(main())
"""


def test_no_secret_is_seen_of_the_console(tmp_path: Path) -> None:
    """Its log at DEBUG, its pages, what it prints and its command line are searched; Kinesis and services are asked."""
    (tmp_path / "penstock_loud_console.py").write_text(_LOUD)
    guess = "planted-guess-1122334455-with-32-characters"
    with running_emulator(companions=("sts",)) as kinesis:
        kinesis.client().create_stream(StreamName="flights", ShardCount=1)
        own = {
            "REGION": "us-east-1",
            "ENDPOINT_URL": kinesis.endpoint_url,
            "ROLE_ARN": "arn:aws:iam::123456789012:role/reader",
            "STS_ENDPOINT_URL": kinesis.endpoints["sts"],
            "STREAMS": "flights",
            "STAGES_ENDPOINT": "127.0.0.1:9",
        }
        environment = {
            **environment_of("stage-scheduler", tmp_path),
            **{f"PENSTOCK_CONSOLE_{name}": value for name, value in own.items()},
            **SECRETS,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])),
        }
        log = tmp_path / "console.log"
        with (
            log.open("wb") as errors,
            service_process("penstock_loud_console", ["serve"], environment, errors) as process,
        ):
            service = Service("console", process, log)
            token = SECRETS["PENSTOCK_CONSOLE_TOKEN"]
            said = []
            deadline = time.monotonic() + DEADLINE
            while "1 open" not in (page := ask(service, "/stream?name=flights", Authorization=f"Bearer {token}")[1]):
                assert time.monotonic() < deadline, page
            for one in (token, guess):
                for path in ("/", "/streams", "/jobs", "/nothing"):
                    said.append(str(ask(service, path, Authorization=f"Bearer {one}")))
            said.append(Path(f"/proc/{process.process.pid}/cmdline").read_text())
            assert process.terminate() == 0
            assert process.process.stdout is not None
            said.append(process.process.stdout.read())
    said.append(log.read_text())
    assert "DEBUG" in said[-1]
    for text in said:
        for name, secret in {**SECRETS, "guess": guess}.items():
            at = text.find(secret)
            assert at < 0, f"{name}: {text[max(0, at - 300) : at + 50]!r}"
