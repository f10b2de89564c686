"""Which of several endpoints owns a key: the one with the highest hash, so that a change moves few keys."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def choose_endpoint(endpoints: Sequence[str], key: str) -> str:
    """Give the endpoint that owns the key (rendezvous hashing): the same one for everybody, in any order."""
    return max(endpoints, key=lambda endpoint: (hashlib.sha256(f"{endpoint}\0{key}".encode()).digest(), endpoint))
