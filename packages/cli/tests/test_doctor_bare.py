"""`penstock doctor` where next to nothing is installed, and as people see it on a terminal."""

import json
import os
import subprocess
import sys

import pytest

from penstock.cli.testing import run_in_terminal

BARE = """
import sys
for name in ("pyspark", "boto3", "botocore", "grpc", "penstock.aws", "penstock.rpc", "penstock.spark_plugin"):
    sys.modules[name] = None  # as if it were not installed
import importlib.metadata as metadata
everything = metadata.distributions
kept = ("penstock-cli", "penstock-terminal", "rich", "rich-argparse", "packaging", "platformdirs")
metadata.distributions = lambda **options: [one for one in everything(**options) if one.metadata["Name"] in kept]
import penstock.cli
from penstock.cli._doctor._command import main
from penstock.cli._doctor._surroundings import Service, Surroundings
world = Surroundings(distributions=metadata.distributions, services=[Service(name="sink", endpoint="127.0.0.1:9")])
sys.exit(main(["--json", *sys.argv[1:]], surroundings=world))
"""


def bare_findings(*arguments: str, **environ: str) -> dict[str, dict[str, str]]:
    """What it finds where next to nothing is installed, by the names of the checks."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    command = [sys.executable, "-c", BARE, *arguments]
    done = subprocess.run(command, env=variables | environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    return {finding["check"]: finding for finding in map(json.loads, done.stdout.splitlines())}


def test_it_needs_neither_pyspark_nor_boto3_nor_grpc() -> None:
    """What is missing is said with the pip command that brings it; all groups are looked at."""
    findings = bare_findings(SPARK_HOME="/opt/spark")
    assert findings["PySpark"]["verdict"] == "problem"
    assert "pip install" in findings["PySpark"]["cure"]
    assert findings["Data source"]["cure"] == "pip install penstock-spark-plugin"
    assert "Spark" not in findings
    asked = bare_findings("--only", "java-and-python")
    assert (asked["PySpark"]["verdict"], "Region" in asked) == ("problem", False)


def test_spark_is_left_out_where_it_is_not_used() -> None:
    """Without PySpark, the plugin or a setting of Spark, one line says so; no Java and no session is a problem."""
    findings = bare_findings()
    assert findings["Spark"]["verdict"] == "skipped"
    assert "--only java-and-python" in findings["Spark"]["cure"]
    assert {"Java", "PySpark", "Workers' Python", "Data source", "Session settings"}.isdisjoint(findings)
    for check in ("Region", "Credentials"):
        assert (findings[check]["verdict"], "penstock-cli[aws]" in findings[check]["cure"]) == ("skipped", True)
    assert findings["sink"]["verdict"] == "problem"


@pytest.mark.parametrize("environ", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_a_terminal_gets_marks_cures_and_a_sum(environ: dict[str, str]) -> None:
    """In colours or without, with letters in place of marks where the encoding has none."""
    variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "PYTHONIOENCODING")}
    variables |= {"TERM": "xterm-256color", "SPARK_LOCAL_DIRS": "/no/such/folder", **environ}
    command = [sys.executable, "-m", "penstock.cli", "doctor", "--only", "machine"]
    ended = run_in_terminal(command, environ=variables, columns=80)
    assert ended.code == 1
    assert "1 problem," in ended.text
    assert "set SPARK_LOCAL_DIRS" in ended.text
    ascii_only = "LC_ALL" in environ
    assert ("✘" in ended.text) is not ascii_only
    assert ("X" in ended.text) is ascii_only
    assert ("\x1b[3" in ended.text or "\x1b[1;3" in ended.text) is not ({"NO_COLOR", "TERM"} & environ.keys() != set())


def test_ctrl_c_is_130() -> None:
    """Also while the doctor waits for an answer, at once and without a traceback."""
    script = "import sys; from penstock.cli import main; sys.exit(main(['wait'], commands={'wait': Wait()}))"
    wait = (
        "import sys, time\nfrom penstock.cli._commands import Command\n"
        "class Point:\n    name, value = 'wait', 'm:wait'\n"
        "    def load(self):\n        return lambda argv: (print('ready', flush=True), time.sleep(60), 0)[2]\n"
        "def Wait(): return Command('wait', '', 'm', Point())\n"
    )
    ended = run_in_terminal([sys.executable, "-c", wait + script], send=b"\x03", when="ready")
    assert (ended.code, "Traceback" in ended.text) == (130, False)
