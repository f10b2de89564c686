"""The tests of reading against an emulator that is unkind wherever Kinesis leaves things open."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

SUMMARY = "the tests of reading pass on the emulator's hostile profile, with new seeds"

READER = ("packages/efo-consumer/tests", "services/shard-reader/tests")
SPARK = (
    "packages/spark-plugin/tests/continuity/test_spark_continuity_bounded.py",
    "packages/spark-plugin/tests/continuity/test_spark_continuity_ends.py",
    "packages/spark-plugin/tests/continuity/test_spark_continuity_streams.py",
    "packages/spark-plugin/tests/continuity/test_spark_event_time.py",
    "packages/spark-plugin/tests/continuity/test_spark_exactly_once.py",
    "packages/spark-plugin/tests/stages/run/test_spark_killed_runs.py",
    "packages/spark-plugin/tests/continuity/test_spark_seams.py",
    "integration_tests/test_demo.py",
)

KILLS = 30
"""Random points at which a driver with stages is killed, in a classic session and over Spark Connect."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--times", type=int, default=1, help="runs in a row; default: 1")
    parser.add_argument("--seed", type=int, help="of the first run, as a failure names it; default: random")
    parser.add_argument("--spark", action="store_true", help="run the tests of queries, kills and the demo as well")


def run(arguments: argparse.Namespace) -> bool:
    """Run the tests so many times, or until a run fails."""
    for number in range(arguments.times):
        seed = random.randrange(10**6) if arguments.seed is None else arguments.seed + number
        paths = [*READER, *(SPARK if arguments.spark else ())]
        options = ["-q", "-n", "4", "--dist", "loadfile", "--kinesis-profile", "hostile", "--kinesis-seed", str(seed)]
        environment = {**os.environ, "PENSTOCK_KILLS": str(KILLS), "PENSTOCK_KILLS_SEED": str(seed)}
        if subprocess.run([sys.executable, "-m", "pytest", *options, *paths], check=False, env=environment).returncode:
            print(f"the hostile profile fails: hatch run prove hostile --seed {seed}")
            return False
        print(f"run {number + 1} of {arguments.times} passed, seed {seed}", flush=True)
    return True
