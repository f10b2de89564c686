"""The tests of what is released: wheels, images, the compose file, the conda recipe, the chart, the manifests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

SUMMARY = "wheels, images, compose file, conda recipe, chart and manifests are what a user can install and start"

TESTS = Path(__file__).with_name("releases")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("-k", dest="chosen", default="", help="run only the tests that match, as with pytest")


def run(arguments: argparse.Namespace) -> bool:
    """Run the tests once."""
    options = ["-q", "-n", "2", "--dist", "loadfile", "-k", arguments.chosen]
    return subprocess.run([sys.executable, "-m", "pytest", *options, str(TESTS)], check=False).returncode == 0
