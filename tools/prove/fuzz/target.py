"""What a target is, and what targets share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

MEBIBYTE = 2**20
LONGEST_INPUT = 64 * 1024
_DETAILS = re.compile(r"[0-9]+|\"[^\"]*\"?|'[^']*'?")


@dataclass(frozen=True)
class Target:
    """Something that reads what others send."""

    seeds: Callable[[], Sequence[bytes]]
    """Inputs to begin with."""
    attempt: Callable[[bytes], str]
    """Tries one input. Returns a description of the answer; raises for an unexpected answer."""
    memory_bytes: int = 64 * MEBIBYTE
    """That a process which tries its inputs may take beyond what it has when the seeds were tried."""


def told(error: Exception) -> str:
    """An error's class, and its words without what an input says."""
    return f"{type(error).__name__} {shape(str(error))}"


def shape(words: str) -> str:
    """Words without what an input says in them."""
    return _DETAILS.sub("#", words)[:40]


@cache
def loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process's targets."""
    return asyncio.new_event_loop()
