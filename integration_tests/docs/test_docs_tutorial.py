"""The tutorial of the documentation works as it is written: all of its files and commands, in order."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
from pyspark.java_gateway import launch_gateway

from penstock.emulator.testing import running_emulator
from penstock.spark_plugin import KinesisDataSource
from penstock.spark_plugin.errors import OptionError

PAGES = Path(__file__).resolve().parents[2] / "docs" / "pages" / "tutorial"
ORDER = ("first-job.md", "break-it.md", "stages.md", "stage-your-job.md")
_FENCE = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PORT = "4567"  # the emulator's on the pages; a free one here
_SPARK = (
    "--master local[2] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 "
    "--conf spark.ui.showConsoleProgress=false pyspark-shell"
)
_GATEWAY = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
# Installing is not done again: the packages of the working tree are there.
_SKIPPED = ("python3 -m venv", ". .venv/", "pip install")


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Terminal:
    """A folder and an environment in which the commands of the pages run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PENSTOCK_"))}
        self.environment = kept | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_SUBMIT_ARGS": _SPARK,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "XDG_STATE_HOME": str(folder / "state"),
        }

        self._gateway: Any = None

    def share_jvm(self) -> None:
        """Let the scripts that are not in the background use one JVM: each has a session of its own in it."""
        with mock.patch.dict(os.environ, self.environment, clear=True):
            launch: Any = launch_gateway
            self._gateway = launch(popen_kwargs={"cwd": self.folder})
        java = self._gateway.java_parameters
        self.environment |= {"PYSPARK_GATEWAY_PORT": str(java.port), "PYSPARK_GATEWAY_SECRET": java.auth_token}

    def _stop_session(self) -> None:
        """Stop what a script left in the JVM, which would have ended with the script."""
        session = self._gateway and self._gateway.jvm.org.apache.spark.sql.SparkSession.getDefaultSession()
        if session and session.isDefined():
            session.get().stop()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text.replace(_PORT, self.port))

    def type(self, command: str) -> str:
        """Run a command; what it prints, with its errors if it fails."""
        command = command.replace(_PORT, self.port)
        if command.startswith("export "):
            self.environment |= dict(setting.split("=", 1) for setting in command.split()[1:])
            return ""
        if command.startswith(_SKIPPED):
            return ""
        # A script in the background is killed, and its JVM has to end with it.
        is_killed = " & " in command
        environment = {name: text for name, text in self.environment.items() if not (is_killed and name in _GATEWAY)}
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        self._stop_session()
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr

    def close(self) -> None:
        """End what the pages started, if it still runs."""
        if self._gateway is not None:
            self._gateway.proc.stdin.close()
            self._gateway.proc.wait(60)
        for file in self.folder.glob("*.pid"):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(file.read_text()))
                # What the pages have ended themselves may have left its number to another, or to a thread of another.
                if Path(process.cwd()) == self.folder:
                    process.terminate()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    yield opened
    opened.close()


def as_pattern(lines: list[str]) -> re.Pattern[str]:
    """Return a pattern for what a page shows; `…` matches anything."""
    return re.compile(".*?".join(map(re.escape, "\n".join(lines).split("…"))), re.DOTALL)


def exchanges(console: str) -> Iterator[tuple[str, list[str]]]:
    """Commands, each with the lines that it is shown to print."""
    command: str | None = None
    shown: list[str] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command, shown
            command, shown = line[2:], []
        else:
            shown.append(line)
    if command is not None:
        yield command, shown


@pytest.mark.timeout(1200)
def test_the_tutorial_works_as_written(terminal: Terminal) -> None:
    """Files are written, commands are typed, and each prints what its page shows, the mistakes too."""
    typed = 0
    for page in ORDER:
        if page == ORDER[1]:
            terminal.share_jvm()
        for language, title, text in _FENCE.findall((PAGES / page).read_text()):
            if language == "console":
                for command, shown in exchanges(text):
                    printed = terminal.type(command).strip("\n")
                    logs = "".join(log.read_text()[-3000:] for log in terminal.folder.glob("*.log"))
                    assert as_pattern(shown).fullmatch(printed), f"{page}: $ {command}\n{printed}\n--- logs\n{logs}"
                    typed += 1
            elif title:
                terminal.write(title, text)
    assert typed >= 15


def test_waiting_ends_when_the_job_has_ended(terminal: Terminal) -> None:
    """The script points at the job's log at once, instead of waiting for its own deadline."""
    files = {title: text for _, title, text in _FENCE.findall((PAGES / "first-job.md").read_text()) if title}
    with subprocess.Popen(["true"]) as job:
        job.wait()
    (terminal.folder / "job.pid").write_text(str(job.pid))
    terminal.write("wait_for.py", files["wait_for.py"])
    with running_emulator() as emulator:
        keys = "export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_DEFAULT_REGION=us-east-1"
        terminal.type(f"{keys} AWS_ENDPOINT_URL_KINESIS={emulator.endpoint_url}")
        kinesis = emulator.client()
        for name in ("flights", "delays"):
            kinesis.create_stream(StreamName=name, ShardCount=1)
            kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
        kinesis.put_record(StreamName="flights", PartitionKey="EWR", Data=b'{"flight": 15}')
        shown = terminal.type("timeout 120 python wait_for.py")
    assert "1 late flights, 1 missing" in shown
    assert "ended" in shown
    assert "job.log" in shown


def test_the_tutorial_quotes_the_error_of_a_missing_option() -> None:
    """The quoted line is the message of the error."""
    quoted = re.search(r"errors\.OptionError: (\[MISSING_OPTION\] .*)", (PAGES / "break-it.md").read_text())
    with pytest.raises(OptionError) as caught:
        KinesisDataSource({"region": "eu-west-1"}).schema()
    assert caught.value.code == "MISSING_OPTION"
    assert quoted
    assert quoted.group(1) == str(caught.value)


def test_what_the_tutorial_installs_exists() -> None:
    """Each distribution of `pip install` is one of this repository."""
    names = re.findall(r"pip install (.*)", (PAGES / "first-job.md").read_text())
    root = PAGES.parents[2]
    own = {path.read_text().split('name = "', 1)[1].split('"', 1)[0] for path in root.glob("packages/*/pyproject.toml")}
    assert names
    # With an extra, in quotes for the shell.
    assert {name.strip("'").partition("[")[0] for line in names for name in line.split()} <= own
