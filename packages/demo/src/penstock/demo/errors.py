"""Errors of the demo.

DemoError
├── DemoDataError      the data set is not installed
└── ChildEndedError    a process of the demo ended before its time
"""

from pathlib import Path


class DemoError(Exception):
    """Base of all errors of this package."""


class DemoDataError(DemoError):
    """The flights and the weather are not installed.

    Cure: Install the demo as a whole: `pip install penstock-demo`.
    """


class ChildEndedError(DemoError):
    """A process of the demo ended before its time.

    `name` says which, `code` is its exit code (negative: the number of the signal), `log` its log file.

    Cure: Read the end of `log`; `hatch run demo` with `--keep` leaves everything else too.
    """

    def __init__(self, name: str, code: int, log: Path) -> None:
        super().__init__(f"the {name} ended with {code}; its last words are in {log}")
        self.name = name
        self.code = code
        self.log = log
