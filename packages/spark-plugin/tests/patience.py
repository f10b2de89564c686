"""How long the tests of Spark wait, and waits at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

PATIENCE_SECONDS = 240
"""Deadline of a wait: what takes a few seconds on a quiet machine may take many times that on a busy one. It is below
the timeout of a test, so that a wait ends with its own message."""


def overlapping(check: Callable[..., None], cases: Sequence[tuple[object, ...]]) -> None:
    """Check cases at the same time: each of them spends its time waiting for its service's clock."""
    with ThreadPoolExecutor(len(cases)) as pool:
        checks = [pool.submit(check, *case) for case in cases]
    for case, one in zip(cases, checks, strict=True):
        error = one.exception()
        if error is not None:
            error.add_note(f"of the case {case}")
            raise error
