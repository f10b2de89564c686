"""Keeps the garbage collection between Spark's tasks short."""

import gc
import sys

_DAEMON = "pyspark.daemon"
_FREEZES = 3
_freezes_done = 0


def freeze_garbage() -> None:
    """Keep what a worker has loaded out of the collection that Spark's daemon runs after every task.

    Without it each task, and each planning and commit of a write, pays for scanning all modules; after three of them
    everything is loaded. A process that is not the daemon's is left as it is: it may be the user's.
    """
    global _freezes_done
    if getattr(sys.modules["__main__"].__spec__, "name", None) != _DAEMON:
        return
    if _freezes_done < _FREEZES:
        _freezes_done += 1
        gc.collect()
        gc.freeze()
