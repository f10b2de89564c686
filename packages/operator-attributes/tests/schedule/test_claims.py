"""Claims on fingerprints: who computes, waits or reuses."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operator_attributes import Claim, ClaimDecision, LocalStageScheduler
from penstock.operator_attributes._schedule.claims import ClaimBook, ClaimRecord
from penstock.operator_attributes.errors import ClaimLostError, InvalidOptionError, SchedulerAwayError

COMPUTE, WAIT, REUSE = ClaimDecision.COMPUTE, ClaimDecision.WAIT, ClaimDecision.REUSE


def ask(book: ClaimBook, owner: str, now: float = 0.0, fingerprint: str = "abc") -> Claim:
    claim, record = book.claim("store", fingerprint, owner, lease_seconds=10, now=now)
    if record is not None:
        book.put(record)
    return claim


def commit(book: ClaimBook, claim: Claim, location: str = "there") -> None:
    book.put(book.commit(claim, location=location, rows=None, size_bytes=None))


def test_the_first_computes_and_the_others_wait_until_it_commits() -> None:
    """Then all reuse what it made."""
    book = ClaimBook()
    mine = ask(book, "one")
    assert (mine.decision, mine.expires_seconds) == (COMPUTE, 10)
    theirs = ask(book, "two", now=4)
    assert (theirs.decision, theirs.owner, theirs.expires_seconds) == (WAIT, "one", 6)
    commit(book, mine)
    for owner in ("one", "two"):
        reused = ask(book, owner, now=100)
        assert (reused.decision, reused.location, reused.expires_seconds) == (REUSE, "there", 0)


def test_other_fingerprints_and_stores_are_claimed_apart() -> None:
    """What differs is computed by whoever needs it."""
    book = ClaimBook()
    ask(book, "one")
    assert ask(book, "two", fingerprint="def").decision is COMPUTE
    assert book.claim("elsewhere", "abc", "two", lease_seconds=10, now=0)[0].decision is COMPUTE


def test_a_claim_that_is_renewed_does_not_run_out() -> None:
    """Each renewal gives the whole lease again."""
    book = ClaimBook()
    mine = ask(book, "one")
    renewed, record = book.renew(mine, now=9)
    book.put(record)
    assert renewed.expires_seconds == 10
    assert ask(book, "two", now=18.9).decision is WAIT
    assert ask(book, "two", now=19).decision is COMPUTE


def test_an_expired_claim_is_valid_until_another_driver_asks() -> None:
    """A driver that was slow, not dead, loses nothing."""
    book = ClaimBook()
    mine = ask(book, "one")
    book.put(book.renew(mine, now=50)[1])
    commit(book, mine)
    assert ask(book, "two", now=60).decision is REUSE


def test_one_that_another_driver_got_is_lost() -> None:
    """Renewing and committing tell so, with the token; the other's claim stands."""
    book = ClaimBook()
    mine = ask(book, "one")
    theirs = ask(book, "two", now=10)
    assert theirs.token > mine.token
    for call in (lambda: book.renew(mine, now=11), lambda: commit(book, mine)):
        with pytest.raises(ClaimLostError) as caught:
            call()
        assert caught.value.token == mine.token
    assert book.is_held(theirs)
    assert not book.is_held(mine)


def test_a_driver_that_came_back_takes_over_its_own_claim_at_once() -> None:
    """It need not wait for its former self, which cannot commit any more."""
    book = ClaimBook()
    before = ask(book, "one#secret")
    after = ask(book, "one#secret", now=1)
    assert after.decision is COMPUTE
    with pytest.raises(ClaimLostError):
        commit(book, before)
    commit(book, after)


def test_a_commit_may_be_repeated() -> None:
    """Its answer may have been lost on the way."""
    book = ClaimBook()
    mine = ask(book, "one")
    commit(book, mine)
    commit(book, mine)
    with pytest.raises(ClaimLostError):
        book.renew(mine, now=1)


def test_only_what_a_caller_saw_missing_is_forgotten() -> None:
    """Not the result that another driver has made in its place."""
    book = ClaimBook()
    commit(book, ask(book, "one"))
    seen = ask(book, "two")
    assert book.is_committed(seen)
    book.remove("store", "abc")
    commit(book, ask(book, "three"))
    assert not book.is_committed(seen)


def test_tokens_grow_over_removals_and_restarts() -> None:
    """A token names one grant, for ever."""
    book = ClaimBook(last_token=41, leap=lambda: 1)
    first = ask(book, "one")
    book.remove("store", "abc")
    assert (first.token, ask(book, "one").token) == (42, 43)
    record = ClaimRecord(store="s", fingerprint="f", owner="o", token=99, lease_seconds=1, expires_at=0)
    assert ask(ClaimBook([record], leap=lambda: 1), "one").token == 100


def test_the_oldest_results_are_forgotten_and_claims_never() -> None:
    """A result that is forgotten is computed again; a claim that were forgotten would be granted twice."""
    book = ClaimBook(max_claims=2)
    commit(book, ask(book, "one", fingerprint="first"))
    commit(book, ask(book, "one", fingerprint="second"))
    _, record = book.claim("store", "third", "one", lease_seconds=10, now=0)
    assert record is not None
    assert [one.fingerprint for one in book.put(record)] == ["first"]
    assert ask(book, "two", fingerprint="second").decision is REUSE
    held = ClaimBook(max_claims=1)
    for fingerprint in ("first", "second"):
        ask(held, "one", fingerprint=fingerprint)
    assert ask(held, "two", fingerprint="first").decision is WAIT


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"store": ""}, "store"),
        ({"fingerprint": ""}, "fingerprint"),
        ({"owner": ""}, "owner"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"lease_seconds": math.nan}, "lease_seconds"),
        ({"lease_seconds": 1e9}, "lease_seconds"),
    ],
)
def test_impossible_claims_are_refused_by_option(change: dict[str, object], option: str) -> None:
    """Names are not empty, leases are positive and end some day."""
    arguments = {"store": "s", "fingerprint": "f", "owner": "o", "lease_seconds": 10, "now": 0, **change}
    with pytest.raises(InvalidOptionError) as caught:
        ClaimBook().claim(**arguments)  # type: ignore[arg-type]  # made wrong on purpose
    assert caught.value.option == option


@given(steps=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "renew", "commit"]), st.floats(0, 15))))
def test_whatever_drivers_do_one_result_is_committed(steps: list[tuple[str, str, float]]) -> None:
    """However slow they are: once a result is committed it stays, and only the last one who was granted commits it."""
    book = ClaimBook()
    now, last_token = 0.0, 0
    held: dict[str, Claim] = {}
    committed: Claim | None = None
    for owner, action, pause in steps:
        now += pause
        if action == "ask":
            claim = ask(book, owner, now)
            if committed is not None:
                assert (claim.decision, claim.token) == (REUSE, committed.token)
            elif claim.decision is COMPUTE:
                assert claim.token > last_token
                held[owner], last_token = claim, claim.token
            else:
                assert claim.token == 0
                assert 0 < claim.expires_seconds <= 10
        elif owner in held:
            mine = held[owner]
            try:
                if action == "renew":
                    book.put(book.renew(mine, now)[1])
                    assert committed is None
                else:
                    commit(book, mine, owner)
                    committed = mine
                assert mine.token == last_token
            except ClaimLostError:
                assert mine.token != last_token or committed is not None


async def test_a_claim_that_waits_is_answered_when_the_scheduler_closes() -> None:
    """Drivers look for another scheduler at once, not after their time."""
    scheduler = LocalStageScheduler()
    await scheduler.claim("store", "abc", owner="one")
    waiting = asyncio.create_task(scheduler.claim("store", "abc", owner="two", wait_seconds=20), name="wait")
    await asyncio.sleep(0)
    await scheduler.close()
    async with asyncio.timeout(5):
        with pytest.raises(SchedulerAwayError, match="SCHEDULER_CLOSED"):
            await waiting
