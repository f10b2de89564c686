# Each name is imported where it is first used: `lazy_loader` reads this file for where it stands.
from ._doctor._findings import Finding, Verdict
from ._doctor._run import diagnose
from ._doctor._surroundings import Surroundings
from ._main import main

__all__ = ["Finding", "Surroundings", "Verdict", "diagnose", "main"]
