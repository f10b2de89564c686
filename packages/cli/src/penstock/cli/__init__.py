"""One command line for all of Penstock: `penstock`.

Packages bring their commands by entry points of the group `penstock.commands`: a name, and a callable that takes the
arguments behind it and gives an exit code (see `penstock.terminal.ExitCode`).
"""

from penstock.cli._doctor._findings import Finding, Verdict
from penstock.cli._doctor._run import diagnose
from penstock.cli._doctor._surroundings import Surroundings
from penstock.cli._main import main

__all__ = ["Finding", "Surroundings", "Verdict", "diagnose", "main"]
