"""Which of several endpoints owns a key: the one with the highest hash, so that a change moves few keys."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def rank_endpoints(endpoints: Iterable[str], key: str) -> list[str]:
    """Give the endpoints in the order in which they may own the key, the owner first: the same for everybody."""
    return sorted(
        endpoints,
        key=lambda endpoint: (hashlib.sha256(f"{endpoint}\0{key}".encode()).digest(), endpoint),
        reverse=True,
    )


def choose_endpoint(endpoints: Iterable[str], key: str) -> str:
    """Give the endpoint that owns the key (rendezvous hashing): the same one for everybody, in any order."""
    return rank_endpoints(endpoints, key)[0]


def shard_key(stream_name: str, shard_id: str) -> str:
    """Give the key by which a shard is owned."""
    return f"{stream_name}/{shard_id}"
