"""One command line for all of Penstock: `penstock`.

Packages bring their commands by entry points of the group `penstock.commands`: a name, and a callable that takes the
arguments behind it and gives an exit code (see `penstock.terminal.ExitCode`).
"""

import lazy_loader

# On first use: most commands need nothing of the doctor.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
