"""What READMEs tell their readers to do first works, with the packages of the environment that the tests run in."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.emulator.testing import running_emulator
from tools.release.versions import Member, find_members

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
MEMBERS = find_members(ROOT)


class ReadmeStart:
    """What a README tells its reader to do first: its code up to the first Python, or the end of that section."""

    def __init__(self, text: str) -> None:
        self.requirements: list[str] = []
        self.commands: list[str] = []
        self.python = ""
        ended = 0
        for fence in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            language, code = fence.groups()
            if self.commands and "\n## " in text[ended : fence.start()]:
                break
            ended = fence.end()
            if language == "python":
                self.python = code
                break
            lines = code.replace("\\\n", " ").splitlines()
            if language == "console":
                lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
            for line in lines:
                words = shlex.split(line, comments=True)
                if words[:2] == ["pip", "install"]:
                    self.requirements += words[2:]
                elif words:
                    self.commands.append(line)


def test_names_in_the_examples_of_readmes_are_defined(tmp_path: Path) -> None:
    """Each README's Python, from its beginning, uses nothing that it has not imported or made."""
    for readme in [ROOT / "README.md", *(member.folder / "README.md" for member in MEMBERS)]:
        text = readme.read_text()
        blocks = re.findall(r"^```(?:python|py)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        example = tmp_path / f"{readme.parent.name}.py"
        example.write_text("\n".join(blocks))
    ruff = [str(Path(sys.executable).with_name("ruff")), "check", "--isolated", "--select", "F821,E9", str(tmp_path)]
    checked = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@contextmanager
def serving(command: str, environ: dict[str, str], folder: Path) -> Iterator[str]:
    """A service of a README, at a port that is free: its address."""
    process = subprocess.Popen(
        ["bash", "-c", "exec " + re.sub(r"--port \d+", "--port 0", command)],
        env=environ,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process, process.stdout:
        try:
            yield str(json.loads(process.stdout.readline())["address"])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


SAYS = {
    "penstock": "|           a|hello|\n|           b|world|",
    "penstock-aws": "X-Amz-Date",
    "penstock-cli": "UA1545",
    "penstock-efo-consumer": "sequenceNumber",
    "penstock-emulator": "UA1545",
    "penstock-rpc": "SERVING",
    "penstock-shard-reader": "2",
    "penstock-sink-gateway": "2 records, ",
}
"""What the examples of some write."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    # The demo's command is run by integration_tests/test_demo.py.
    "member",
    [member for member in MEMBERS if member.name != "penstock-demo"],
    ids=lambda member: member.name,
)
def test_a_readme_begins_with_what_works(member: Member, tmp_path: Path) -> None:
    """It installs its own package, and its first examples run as printed, except for the numbers of ports.

    Kinesis is the emulator, by the variables that the SDKs of AWS know; the home is empty.
    """
    start = ReadmeStart((member.folder / "README.md").read_text())
    assert any(requirement.partition("[")[0] == member.name for requirement in start.requirements)
    assert start.commands or start.python
    environ = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(tmp_path)}
    environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "eu-west-1"}
    # Use the tests' Java and Spark, which start quickly.
    environ |= {name: os.environ[name] for name in ("JAVA_TOOL_OPTIONS", "SPARK_HOME") if name in os.environ}
    ports: dict[str, str] = {}

    def as_served(text: str) -> str:
        for printed, port in ports.items():
            text = text.replace(printed, port)
        return text

    with ExitStack() as services:
        emulator = services.enter_context(running_emulator())
        environ["AWS_ENDPOINT_URL"] = emulator.endpoint_url
        kinesis = emulator.client()
        for stream in ("flights", "orders"):
            kinesis.create_stream(StreamName=stream, ShardCount=1)
            for number in (b"UA1545", b"UA1714"):
                kinesis.put_record(StreamName=stream, PartitionKey="EWR", Data=number)
        said = ""
        for command in start.commands:
            if exported := re.fullmatch(r"export (\w+)=(\S+)( *#.*)?", command):
                environ[exported[1]] = exported[2]
            elif " serve " in command:
                address = services.enter_context(serving(as_served(command), environ, tmp_path))
                for printed in re.findall(r"--port (\d+)", command):
                    ports[printed] = address.rpartition(":")[2]
            else:
                shell = ["bash", "-c", as_served(command)]
                ran = subprocess.run(shell, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
                assert ran.returncode == 0, (command, ran.stdout[-3000:], ran.stderr[-3000:])
                said += ran.stdout
        if start.python:
            (tmp_path / "example.py").write_text(as_served(start.python))
            with subprocess.Popen(
                [sys.executable, "example.py"],
                env=environ | {"PYTHONUNBUFFERED": "1"},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                assert process.stdout is not None
                if "async for" in start.python:
                    # It reads for as long as it is let.
                    said += process.stdout.readline()
                    process.send_signal(signal.SIGINT)
                    process.communicate()
                else:
                    out, errors = process.communicate()
                    said += out
                    assert process.returncode == 0, errors[-3000:]
                    # Spark's daemon, about to start a worker when the session ends, says that a pipe is broken; and
                    # may be ended itself before it has named a line.
                    told = [one for one in errors.split("Traceback")[1:] if ", line " in one]
                    ours = [one for one in told if "pyspark/daemon.py" not in one]
                    assert ours == [], errors[-3000:]
    assert SAYS.get(member.name, "") in said


@pytest.mark.timeout(600)
def test_the_first_five_minutes_of_the_readme(tmp_path: Path) -> None:
    """Its commands run as printed, except for ports: from an empty home to a row, and its stream in the console."""
    block = (ROOT / "README.md").read_text().partition("<!-- five minutes -->\n```console\n")[2].partition("```")[0]
    lines = [line.removeprefix("$ ") for line in block.splitlines()]
    install, emulator, wait, export, *commands, console = lines
    assert install.startswith("pip install ")
    home = tmp_path / "home"
    home.mkdir()
    environ = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(home)}

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command], env=environ, cwd=home, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    start = "exec " + emulator.removesuffix(" &").replace("--port 4567", "--port 0")
    with subprocess.Popen(["bash", "-c", start], env=environ, cwd=home) as process:
        try:
            run(wait)
            address = json.loads((home / "ready.json").read_text())["endpoint_url"]
            environ |= dict(word.split("=", 1) for word in shlex.split(export)[1:])
            assert environ["AWS_ENDPOINT_URL"] == "http://127.0.0.1:4567"
            environ["AWS_ENDPOINT_URL"] = address
            said = [run(command) for command in commands]
            assert "UA1545" in said[-1]
            with serving(console, environ, home) as at:
                assert "2 shards" in wait_for_page(f"http://{at}/stream?name=flights", "shardId-000000000001")
        finally:
            process.send_signal(signal.SIGTERM)


def wait_for_page(url: str, words: str) -> str:
    """The page, once it has the words: the console asks in turns."""
    while True:
        with urllib.request.urlopen(url, timeout=30) as answer:
            page = answer.read().decode()
        if words in page:
            return str(page)
        time.sleep(0.2)
