"""How often a process that keeps much for long looks for garbage."""

import gc

# By Python's own thresholds, 700, 10 and 10, a reader of 8,000 shards looked through all of its millions of objects for
# half of its time: events that wait for their query to take them are old by then, and count as what came to stay. The
# product bounds what cycles may hold meanwhile, two and a half million objects.
_THRESHOLDS = (50_000, 10, 5)


def collect_seldom() -> None:
    """Let this process look for garbage less often: one that keeps millions of objects for as long as it runs.

    What no cycle holds is freed at once as ever. For processes that are ours: a service, a query's source.
    """
    gc.set_threshold(*_THRESHOLDS)
