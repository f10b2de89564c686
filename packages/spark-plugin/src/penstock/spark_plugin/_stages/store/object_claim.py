"""Claims on work for one driver at a time, in stores without file locks."""

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from penstock.aws import AwsError
from penstock.spark_plugin._for_stages import Objects
from penstock.spark_plugin.errors import StoreLostError

_log = logging.getLogger(__name__)
_BEATS_PER_LEASE = 3
_GRACE_SECONDS = 1.0
"""A store gives times in whole seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    token: int
    """One more than the token of the claim before. A driver with a lower token has lost the claim."""
    owner: str
    """For people."""
    nonce: str
    seconds: float
    """Without a heartbeat for so long, it is another's."""
    beat: int = 0
    released: bool = False

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, data: bytes) -> "_Held":
        try:
            one = cls(**json.loads(data))
            if isinstance(one.token, int) and isinstance(one.seconds, int | float):
                return one
        except (ValueError, TypeError):
            pass
        # Emptied or broken by hand: no driver can hold it, as no driver could renew it.
        return cls(token=0, owner="no driver", nonce="", seconds=0, released=True)


class StoreClaim(Protocol):
    """A claim, held from `acquire` to `release`. A claim that is not renewed expires."""

    @property
    def holder(self) -> str:
        """The last known holder, for messages."""

    @property
    def holder_lives(self) -> bool:
        """Whether the holder is known to run, or has renewed it since the first call of `acquire`."""

    @property
    def token(self) -> int:
        """The fencing number, which grows with each holder; 0 while nothing is held."""

    def acquire(self) -> bool:
        """Take it if it is free or has expired; otherwise call again.

        Raises:
            penstock.aws.AwsError: the store cannot be reached.
            StoreUnusableError: the service that decides cannot be reached.
        """

    def check(self) -> None:
        """Nothing is held by others for as long as this does not raise. Raises: StoreLostError."""

    def release(self, *, remove: bool = False) -> None:
        """Release it, and remove what it consists of if asked to. Can be repeated."""


class ObjectClaim:
    """An object with a heartbeat, which a thread renews from `acquire` to `release`; see `StoreClaim`.

    Whether a claim expired is decided by the store's clock, and by how long the object was seen unchanged: never by
    another host's clock.
    """

    def __init__(
        self,
        objects: Objects,
        key: str,
        *,
        seconds: float,
        lost: Callable[[StoreLostError], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Hold nothing yet. `lost`: called, on its own thread, if another driver gets the claim before its release."""
        self._objects = objects
        self._key = key
        self._seconds = seconds
        self._when_lost = lost
        self._clock = clock
        self._seen: tuple[str, float] | None = None
        self._held: _Held | None = None
        self._version = ""
        self._renewed_at = 0.0
        self._lost: StoreLostError | None = None
        self._released = threading.Event()
        self._thread: threading.Thread | None = None
        self.holder = "another driver"
        """The driver that held it when it was last read."""
        self.holder_lives = False
        """Whether the holder has renewed it since this claim looked for the first time."""

    @property
    def token(self) -> int:
        """The fencing number; 0 while nothing is held."""
        return self._held.token if self._held is not None else 0

    def acquire(self) -> bool:
        """Take it if it is free, or has run out; to be asked again.

        Raises:
            penstock.aws.AwsError: the store cannot be reached.
        """
        now = self._clock()
        found = self._objects.read(self._key)
        before = _Held.parse(found.data) if found is not None else None
        if found is not None and before is not None and not before.released:
            if self._seen is None or self._seen[0] != found.version:
                self.holder_lives = self._seen is not None
                self._seen = found.version, now
            age = max(found.age_seconds, now - self._seen[1])
            self.holder = f"{before.owner}, last heard of {age:.0f} s ago"
            if age < before.seconds + _GRACE_SECONDS:
                return False
            _log.warning("the claim of %s on %s has run out: taking it over", before.owner, self._name)
        mine = _Held(
            token=before.token + 1 if before is not None else 1,
            owner=f"process {os.getpid()} on {socket.gethostname()}",
            nonce=secrets.token_hex(16),
            seconds=self._seconds,
        )
        version = self._objects.write(self._key, mine.dump(), if_version=found and found.version)
        if version is None:
            return False
        self._held, self._version, self._renewed_at = mine, version, now
        self._lost = None
        self._released.clear()
        self._thread = threading.Thread(target=self._renew, name=f"penstock claim {self._key}", daemon=True)
        self._thread.start()
        return True

    def check(self) -> None:
        """Nothing is held by others for as long as this does not raise. Raises: StoreLostError."""
        if self._lost is None and self._clock() - self._renewed_at > self._seconds:
            self._lose(f"it could not be renewed for {self._clock() - self._renewed_at:.0f} s")
        if self._lost is not None:
            raise self._lost

    def release(self, *, remove: bool = False) -> None:
        """Release it. Can be repeated; a claim expires if the store does not answer."""
        self._released.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        held, self._held = self._held, None
        if held is not None and self._lost is None:
            try:
                self._objects.write(self._key, replace(held, released=True).dump(), if_version=self._version)
                if remove:
                    # Another driver may hold it by now: at worst, a result is computed twice, and committed once.
                    self._objects.delete([self._key])
            except AwsError as error:
                _log.warning(
                    "the claim on %s could not be released, and runs out in %.0f s: %s", self._name, held.seconds, error
                )

    def abandon(self) -> None:
        """Stop renewing it, like a driver that is killed."""
        self._released.set()

    @property
    def _name(self) -> str:
        return f"{self._objects.place.shown}/{self._key}"

    def _renew(self) -> None:
        while not self._released.wait(self._seconds / _BEATS_PER_LEASE):
            held, asked_at = self._held, self._clock()
            if held is None:
                return
            mine = replace(held, beat=held.beat + 1)
            try:
                version = self._objects.write(self._key, mine.dump(), if_version=self._version)
            except Exception as error:
                if self._clock() - self._renewed_at > self._seconds:
                    self._lose(f"it could not be renewed for {self._clock() - self._renewed_at:.0f} s: {error}")
                    return
                _log.warning("the claim on %s could not be renewed, and is tried again: %s", self._name, error)
                continue
            if version is None:
                self._lose("another driver has taken it over")
                return
            self._held, self._version, self._renewed_at = mine, version, asked_at

    def _lose(self, reason: str) -> None:
        self._lost = StoreLostError(self._objects.place.shown, reason)
        _log.error("%s", self._lost)
        if self._when_lost is not None:
            self._when_lost(self._lost)
