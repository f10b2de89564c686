"""Progress: bars on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

_LINE_EVERY_SECONDS = 5.0


class Progress:
    """Shows how many rows were accepted by Kinesis and read by Spark; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Bars | None = None
        self._line_at = 0.0
        if console.is_terminal:
            columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = Bars(*columns, console=console)
            self._put = self._bars.add_task("put into flights", total=None)
            self._read = self._bars.add_task("read by Spark", total=None)

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Print a line, above the bars if there are any."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def update(self, total: int, accepted: int, read: int) -> None:
        """Show how far it is."""
        if self._bars is not None:
            self._bars.update(self._put, total=total, completed=accepted)
            self._bars.update(self._read, total=total, completed=read)
        elif time.monotonic() - self._line_at >= _LINE_EVERY_SECONDS:
            self._line_at = time.monotonic()
            self.say(f"put {accepted:,} of {total:,}, read {read:,}")
