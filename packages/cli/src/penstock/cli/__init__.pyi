# Each name is imported where it is first used: `lazy_loader` reads this file for where it stands.
from ._doctor._run import diagnose
from ._doctor._surroundings import Finding, Surroundings, Verdict
from ._main import main

__all__ = ["Finding", "Surroundings", "Verdict", "diagnose", "main"]
