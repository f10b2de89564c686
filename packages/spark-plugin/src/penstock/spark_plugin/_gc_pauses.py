"""Keeps garbage collections short in the processes that Spark starts for us."""

import gc
import sys

from penstock.rpc import collect_seldom

_DAEMON = "pyspark.daemon"
_SOURCE = "pyspark.sql.streaming.python_streaming_source_runner"
_FREEZES = 3
_freezes_done = 0


def limit_collections() -> None:
    """Spare a process collections that find nothing. One that Spark did not start is left alone: it may be the user's.

    Spark's daemon collects after every task: without this each task, and each planning and commit of a write, pays for
    scanning all modules. After three of them everything is loaded. A streaming query's source is one process.
    """
    global _freezes_done
    started = getattr(sys.modules["__main__"].__spec__, "name", None)
    if started == _SOURCE:
        collect_seldom()
    elif started == _DAEMON and _freezes_done < _FREEZES:
        _freezes_done += 1
        gc.collect()
        gc.freeze()
