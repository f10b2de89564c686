"""Who of this process reads which shard: the service does not tell a reader who took its subscription."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = itertools.count(1)


def reader_name() -> str:
    """A name for a reader that was given none: host, process, and a number within it."""
    return f"{socket.gethostname()}/{os.getpid()}/{next(_numbers)}"


class Readers:
    """Readers by stream consumer and shard. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[tuple[str, str], list[str]] = {}

    @staticmethod
    @cache
    def of_process() -> Readers:
        """Those of this process."""
        return Readers()

    @contextmanager
    def reading(self, consumer_arn: str, shard_id: str, reader: str) -> Iterator[None]:
        """The reader subscribes to the shard, again and again."""
        key = (consumer_arn, shard_id)
        with self._lock:
            self._readers.setdefault(key, []).append(reader)
        try:
            yield
        finally:
            with self._lock:
                self._readers[key].remove(reader)
                if not self._readers[key]:
                    del self._readers[key]

    def other(self, consumer_arn: str, shard_id: str, reader: str) -> str | None:
        """The latest other reader of this process that subscribes to the shard."""
        with self._lock:
            others = [one for one in self._readers.get((consumer_arn, shard_id), ()) if one != reader]
        return others[-1] if others else None
