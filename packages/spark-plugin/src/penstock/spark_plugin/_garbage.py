"""Keeps the garbage collection between Spark's tasks short."""

import gc

_FREEZES = 3
_freezes_done = 0


def freeze_garbage() -> None:
    """Keep what a worker has loaded out of the collection that Spark's daemon runs after every task.

    Without it each task pays for scanning all modules; after three reads everything is loaded.
    """
    global _freezes_done
    if _freezes_done < _FREEZES:
        _freezes_done += 1
        gc.collect()
        gc.freeze()
