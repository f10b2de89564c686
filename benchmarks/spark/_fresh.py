"""Spark sessions in processes of their own: one that nothing has warmed up, and drivers that are killed."""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from pyspark.sql import DataFrame

from benchmarks import _jobs as jobs
from benchmarks.spark._floor import FloorSource


@dataclass(frozen=True)
class Source:
    """What a query reads; it goes from process to process."""

    format: str
    options: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> DataFrame:
        """The stream, in the session of this process."""
        return jobs.session().readStream.format(self.format).options(**self.options).load()


@dataclass(frozen=True)
class _Failed:
    """Instead of a result."""

    text: str


@dataclass(frozen=True)
class Driver:
    """A process with a session, under way."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection
    jvm: int
    """The JVM's process id."""

    def next(self, patience_seconds: float) -> Any:
        """What it sends next.

        Raises:
            RuntimeError: it failed, ended, or sent nothing in time.
        """
        return _received(self.pipe, patience_seconds)

    def kill(self) -> list[Any]:
        """Kill the process and its JVM with SIGKILL, and return what it had sent and no caller had received.

        Spark's Python processes below the JVM are left alone: they learn from their ends of pipes that it is gone.
        """
        self.process.kill()
        os.kill(self.jvm, signal.SIGKILL)
        self.process.join()
        left = []
        with suppress(EOFError, OSError):
            while True:
                left.append(self.pipe.recv())
        return left


def _received(pipe: Connection, patience_seconds: float) -> Any:
    try:
        if not pipe.poll(patience_seconds):
            raise RuntimeError(f"the driver sent nothing for {patience_seconds:g} s")
        found = pipe.recv()
    except EOFError:
        raise RuntimeError("the driver ended") from None
    if isinstance(found, _Failed):
        raise RuntimeError(found.text)
    return found


def _run(function: Callable[..., Any], arguments: tuple[Any, ...], local: str, pipe: Connection) -> None:
    """Make a session, send the JVM's number, then what the function returns; it may send by the pipe meanwhile."""
    # What a killed JVM leaves goes with the benchmark's folder.
    os.environ["SPARK_LOCAL_DIRS"] = local
    try:
        spark = jobs.session()
        spark.dataSource.register(FloorSource)
        context = spark.sparkContext
        pipe.send(context._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        pipe.send(function(*arguments, pipe))
        spark.stop()
    except BaseException:
        with suppress(OSError):
            pipe.send(_Failed(traceback.format_exc()))
        sys.exit(1)


@contextmanager
def driver(function: Callable[..., Any], *arguments: Any, patience_seconds: float = 120.0) -> Iterator[Driver]:
    """Run `function(*arguments, pipe)`, a module's own, in a new process with a new session. Ended with the context."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    local = str(jobs.fresh("local"))
    process = context.Process(target=_run, args=(function, arguments, local, other), name="bench driver")
    process.start()
    other.close()
    try:
        yield Driver(process, pipe, _received(pipe, patience_seconds))
    finally:
        process.join(0 if sys.exc_info()[0] else 30)
        if process.is_alive():
            process.kill()
            process.join()
        pipe.close()


def in_fresh_session(function: Callable[..., Any], *arguments: Any, patience_seconds: float = 180.0) -> Any:
    """What `function(*arguments, pipe)` returns in a new process with a new session."""
    with driver(function, *arguments) as running:
        return running.next(patience_seconds)
