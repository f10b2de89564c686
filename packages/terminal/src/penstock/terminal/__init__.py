"""What Penstock's commands share: tables on a terminal, plain lines in a pipe, JSON lines, and exit codes."""

import lazy_loader

# On first use: a command that answers at once shows no live tables, and a pipe needs nothing that draws.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
