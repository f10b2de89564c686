"""Claims on fingerprints: which driver computes a result that several drivers need. Decides without I/O."""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from penstock.operator_attributes.errors import ClaimLostError, InvalidOptionError

DEFAULT_LEASE_SECONDS = 30.0
MAX_LEASE_SECONDS = 24 * 3600.0
_MARK = "#"


def _leap() -> int:
    # A token releases or commits a claim: drivers must not be able to guess the token of another driver.
    return 1 + secrets.randbelow(2**32)


class ClaimDecision(StrEnum):
    """What the driver that asked is to do."""

    COMPUTE = "compute"
    """Compute the result, renew the claim meanwhile, and commit it."""
    WAIT = "wait"
    """Another driver computes it: ask again."""
    REUSE = "reuse"
    """It is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The answer to the question which driver computes a result."""

    store: str
    """Where the result is kept, as the drivers call it."""
    fingerprint: str
    """Names the result."""
    decision: ClaimDecision
    owner: str
    """The driver that computes it, or did, without its secret."""
    token: int
    """Grows with each granted claim: an older one cannot commit any more. 0 with WAIT."""
    expires_seconds: float = 0.0
    """Seconds until the claim runs out; 0 of a committed result."""
    renewals: int = 0
    """How often its holder has renewed it: a growing number shows that the holder is alive."""
    location: str = ""
    """Where a committed result is, as the driver that computed it said."""
    rows: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """A claim as it is remembered."""

    store: str
    fingerprint: str
    owner: str
    """The driver and its secret."""
    token: int
    lease_seconds: float
    expires_at: float
    """Seconds by the clock of the running scheduler. A scheduler that starts later gives each claim its full lease."""
    renewals: int = 0
    committed: bool = False
    location: str = ""
    rows: int | None = None
    size_bytes: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What is claimed."""
        return self.store, self.fingerprint


class ClaimBook:
    """All claims by (store, fingerprint).

    Its decisions change nothing: they return an answer and the new record, for `put` or `remove` once the record is
    durable.
    """

    def __init__(
        self,
        records: Iterable[ClaimRecord] = (),
        *,
        last_token: int = 0,
        max_claims: int = 10_000,
        leap: Callable[[], int] = _leap,
    ) -> None:
        """Go on from what was remembered; beyond `max_claims`, the results that were committed first are forgotten.

        `leap` gives the distance of a token from the one before.
        """
        self._leap = leap
        self._records = {record.key: record for record in records}
        self._last_token = max([last_token, *(record.token for record in self._records.values())])
        self._max_claims = max_claims

    def claim(
        self, store: str, fingerprint: str, owner: str, *, lease_seconds: float, now: float
    ) -> tuple[Claim, ClaimRecord | None]:
        """Decide which driver computes. Returns a record if it is the caller. Raises: InvalidOptionError."""
        for option, text in (("store", store), ("fingerprint", fingerprint), ("owner", owner)):
            if not text:
                raise InvalidOptionError(option, text, "a text that is not empty")
        if not 0 < lease_seconds <= MAX_LEASE_SECONDS:
            raise InvalidOptionError("lease_seconds", lease_seconds, f"more than 0, at most {MAX_LEASE_SECONDS:.0f}")
        present = self._records.get((store, fingerprint))
        if present is not None:
            if present.committed:
                return _answer(present, ClaimDecision.REUSE, now), None
            is_back = present.owner == owner and _MARK in owner
            if not is_back and present.expires_at > now:
                return _answer(present, ClaimDecision.WAIT, now), None
        record = ClaimRecord(
            store=store,
            fingerprint=fingerprint,
            owner=owner,
            token=self._last_token + self._leap(),
            lease_seconds=lease_seconds,
            expires_at=now + lease_seconds,
        )
        return _answer(record, ClaimDecision.COMPUTE, now), record

    def renew(self, claim: Claim, now: float) -> tuple[Claim, ClaimRecord]:
        """Keep a claim, also one that expired if no other driver asked for it. Raises: ClaimLostError."""
        present = self._held(claim)
        if present.committed:
            raise _lost(claim)
        record = replace(present, expires_at=now + present.lease_seconds, renewals=present.renewals + 1)
        return _answer(record, ClaimDecision.COMPUTE, now), record

    def commit(self, claim: Claim, *, location: str, rows: int | None, size_bytes: int | None) -> ClaimRecord:
        """The result is there; by the same claim again, the same result. Raises: ClaimLostError."""
        present = self._held(claim)
        if present.committed:
            # All drivers know its token by now: none of them may change its location.
            return present
        return replace(present, committed=True, location=location, rows=rows, size_bytes=size_bytes)

    def is_held(self, claim: Claim) -> bool:
        """Whether `claim` is the last one that was granted, and its result is not committed."""
        present = self._records.get((claim.store, claim.fingerprint))
        return present is not None and present.token == claim.token and not present.committed

    def is_committed(self, claim: Claim) -> bool:
        """Whether the result named by `claim` is the committed one."""
        present = self._records.get((claim.store, claim.fingerprint))
        return present is not None and present.token == claim.token and present.committed

    def put(self, record: ClaimRecord) -> tuple[ClaimRecord, ...]:
        """Remember a record. Returns those that are forgotten for it."""
        self._records.pop(record.key, None)
        self._records[record.key] = record
        self._last_token = max(self._last_token, record.token)
        if len(self._records) <= self._max_claims:
            return ()
        forgotten = next((one for one in self._records.values() if one.committed and one is not record), None)
        if forgotten is None:
            return ()
        self.remove(forgotten.store, forgotten.fingerprint)
        return (forgotten,)

    def remove(self, store: str, fingerprint: str) -> None:
        """Forget what is claimed there, if anything is."""
        self._records.pop((store, fingerprint), None)

    def _held(self, claim: Claim) -> ClaimRecord:
        present = self._records.get((claim.store, claim.fingerprint))
        if present is None or present.token != claim.token:
            raise _lost(claim)
        return present


def _lost(claim: Claim) -> ClaimLostError:
    return ClaimLostError(store=claim.store, fingerprint=claim.fingerprint, token=claim.token)


def _answer(record: ClaimRecord, decision: ClaimDecision, now: float) -> Claim:
    return Claim(
        store=record.store,
        fingerprint=record.fingerprint,
        decision=decision,
        owner=record.owner.partition(_MARK)[0],
        token=0 if decision is ClaimDecision.WAIT else record.token,
        # A clock that was set back must not make a lease longer.
        expires_seconds=0.0 if record.committed else min(record.lease_seconds, max(0.0, record.expires_at - now)),
        renewals=record.renewals,
        location=record.location,
        rows=record.rows,
        size_bytes=record.size_bytes,
    )
