"""The processes that Spark starts: their garbage collections are short, and they end in order."""

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from penstock.rpc import collect_seldom

_DAEMON = "pyspark.daemon"
_FREEZES = 3
_freezes_done = 0


def limit_collections() -> None:
    """Spare a process collections that find nothing. One that Spark did not start is left alone: it may be the user's.

    Spark's daemon collects after every task: without this each task, and each planning and commit of a write, pays for
    scanning all modules. After three of them everything is loaded. A streaming query's source is one process.
    """
    global _freezes_done
    started = getattr(sys.modules["__main__"].__spec__, "name", None)
    if started == _RUNNER:
        collect_seldom()
    elif started == _DAEMON and _freezes_done < _FREEZES:
        _freezes_done += 1
        gc.collect()
        gc.freeze()


_log = logging.getLogger(__name__)
_installed_in: int | None = None
_watched_in: int | None = None
_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
_LOOK_SECONDS = 1.0
_LOOKS = 3
_TOUCH_SECONDS = 3600.0


def exit_on_sigterm() -> None:
    """Make SIGTERM leave by `sys.exit`, so that the reader's `stop()` runs.

    Spark asks the process to stop and sends SIGTERM at the same time, twice; by default that kills it before `stop()`
    in two of three cases. Only the main thread can install a handler; elsewhere this does nothing.
    """
    global _installed_in
    if _installed_in == os.getpid() or threading.current_thread() is not threading.main_thread():
        return

    def leave(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    _installed_in = os.getpid()


def ignore_sigterm() -> None:
    """Let nothing interrupt the end that has begun, where `exit_on_sigterm` was called."""
    if _installed_in == os.getpid() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


class SparkContextWatch:
    """Whether the Spark context of this process, which Spark started, is still there.

    A JVM outlives its context, as in a notebook after `spark.stop()`, and an idle query outlives it too: nothing ends
    its source, and it can no longer be stopped. But the context removes the folder of its files as it stops. Other
    things that remove it go by its age: so its time is updated regularly.

    Args:
        folder: the folder of the context's files.
        parent: the JVM's process id, or its daemon's.
        parent_now: the process id of this process's parent.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        folder: Path | None,
        parent: int,
        *,
        parent_now: Callable[[], int] = os.getppid,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder if folder is not None and folder.is_absolute() and folder.is_dir() else None
        self._parent = parent
        self._parent_now = parent_now
        self._clock = clock
        self._touched: float | None = None
        self._missed = 0

    def what_is_gone(self) -> str | None:
        """What has ended; None while all is there. To be asked every second: a folder counts when missed thrice."""
        if self._parent_now() != self._parent:
            return "the JVM"
        if self._folder is None:
            return None
        try:
            if self._touched is None or self._clock() - self._touched >= _TOUCH_SECONDS:
                self._touched = self._clock()
                os.utime(self._folder)
            self._missed = 0 if self._folder.is_dir() else self._missed + 1
        except FileNotFoundError:
            self._missed += 1
        except OSError as error:
            _log.debug("cannot touch %s: %s", self._folder, error)
        return "the Spark context" if self._missed >= _LOOKS else None


def end_with_spark() -> None:
    """Let this process end, as by SIGTERM, within seconds of its Spark context or JVM; in a process of the user's, not.

    To be called after `exit_on_sigterm`.
    """
    global _watched_in
    if getattr(sys.modules["__main__"].__spec__, "name", None) != _RUNNER or _installed_in != os.getpid():
        return
    if _watched_in == os.getpid():
        return
    _watched_in = os.getpid()
    watch = SparkContextWatch(spark_files_folder(), os.getppid())

    def look() -> None:
        while (gone := watch.what_is_gone()) is None:
            time.sleep(_LOOK_SECONDS)
        _log.warning("%s has stopped: this source ends, and gives its stream consumers back", gone)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=look, name="penstock watch of Spark", daemon=True).start()


def spark_files_folder() -> Path | None:
    """The folder of the context's files, as Spark told a process that it started; None in other processes."""
    from pyspark import SparkFiles

    if not SparkFiles._is_running_on_worker or SparkFiles._root_directory is None:
        return None
    # It names a folder of the job's in it, which may never be made.
    files = Path(SparkFiles._root_directory)
    return next((folder for folder in (files, *files.parents) if folder.name.startswith("userFiles-")), None)
