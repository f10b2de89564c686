"""Child processes that never outlive the demo, and what they share with it: JSON lines, and an end."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.demo.errors import DemoError


def tell(**values: Any) -> None:
    """Write one JSON line for the parent."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


class Parent:
    """What the parent asks for: to continue, and to stop."""

    def __init__(self) -> None:
        self.go = threading.Event()
        """Set when the parent wrote a line to the standard input, and at the stop."""
        self.stop = threading.Event()
        """Set at SIGTERM, and when the parent is gone: its end of the standard input is closed."""
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._watch, name="watch the parent", daemon=True).start()

    def _watch(self) -> None:
        while os.read(0, 1024):
            self.go.set()
        self._end()

    def _end(self) -> None:
        self.stop.set()
        self.go.set()


class Child:
    """A Python module that runs in a process group of its own and reports what it does in JSON lines.

    Ctrl-C in the terminal does not reach it: the demo ends its children itself, in order. Its standard input stays
    open as long as the demo lives; a child that reads the end of it knows that the demo was killed.
    """

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        self.latest: dict[str, Any] = {}
        """The newest value of each key that the child wrote."""
        self._changed = threading.Condition()
        self._ended = False
        with log.open("ab") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                text=True,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name=f"read {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self.log.open("a", encoding="utf-8") as log:
            for line in self._process.stdout:
                try:
                    values = json.loads(line)
                except ValueError:
                    log.write(line)
                    log.flush()
                    continue
                if isinstance(values, dict):
                    with self._changed:
                        self.latest.update(values)
                        self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.poll()

    def wait_for(self, key: str, timeout_seconds: float) -> Any:
        """The value of a key, once the child wrote it.

        Raises:
            DemoError: it ended before.
            TimeoutError: it did not report in time.
        """
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: key in self.latest or not self._reader.is_alive() or self.poll() is not None, timeout_seconds
            )
        if key in self.latest:
            return self.latest[key]
        if is_there:
            raise self.ended_early()
        raise TimeoutError(f"the {self.name} did not report {key!r} within {timeout_seconds:.0f} s; see {self.log}")

    def ended_early(self) -> DemoError:
        """The error of a child that has ended before its time; names its exit code and its log."""
        code = self._process.wait()
        return DemoError(f"the {self.name} ended with {code}; its last words are in {self.log}")

    def go_on(self) -> None:
        """Let it continue, if it waits for that."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """End it as the kernel would: at once, without a chance to tidy up."""
        self._process.kill()
        self._process.wait()

    def end(self, timeout_seconds: float = 30.0) -> int:
        """Ask it to end, then make it. Whatever it started ends too. Returns the exit code, also when repeated."""
        if self._ended:
            # Another process may have its number, or the number of its group, by now.
            return self._process.wait()
        try:
            if self._process.poll() is None:
                self._process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout_seconds)
        finally:
            # Its own children, such as Spark's JVM, share its group. Also when Ctrl-C ends the waiting.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._ended = True
        code = self._process.wait()
        self._reader.join(5)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        return code
