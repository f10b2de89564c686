"""The life of a lease, without I/O."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.registration import ConflictPolicy, ConsumerRecord, RegistrationPhase, _lease

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights/consumer/delays:1"
JOBS = ("a", "b", "c")
TIME_TO_LIVE = 30.0


def new_record(now=1000.0, **fields):
    return ConsumerRecord(stream_name="flights", consumer_name="delays", created_at=now, **fields)


def held_by(job_id, record=None, *, now=1000.0, policy=ConflictPolicy.REFUSE):
    outcome = _lease.acquire(
        record or new_record(), job_id=job_id, time_to_live_seconds=TIME_TO_LIVE, policy=policy, now=now
    )
    assert isinstance(outcome, _lease.Granted)
    return outcome.record


def registered(record, **fields):
    made = {"phase": RegistrationPhase.REGISTERED, "consumer_arn": ARN, "registration_is_ours": True}
    return replace(record, **{**made, **fields})


def test_a_second_job_is_refused_with_the_holder_and_its_age():
    """The refusal says who, since when, and for how long still."""
    record = held_by("a", now=1000.0)
    record = _lease.renew(record, job_id="a", fencing_token=1, now=1020.0)
    outcome = _lease.acquire(record, job_id="b", time_to_live_seconds=30, policy=ConflictPolicy.REFUSE, now=1025.0)
    assert isinstance(outcome, _lease.Refused)
    assert (outcome.holder.job_id, outcome.held_seconds, outcome.remaining_seconds) == ("a", 25.0, 25.0)


def test_who_waits_is_told_how_long_at_most():
    """Until the lease would end by itself."""
    outcome = _lease.acquire(held_by("a"), job_id="b", time_to_live_seconds=30, policy=ConflictPolicy.WAIT, now=1010.0)
    assert outcome == _lease.Wait(20.0)


def test_taking_over_ends_the_holders_lease():
    """The new holder has a greater token, and the old one's heartbeat is refused."""
    record = held_by("b", held_by("a"), now=1001.0, policy=ConflictPolicy.TAKE_OVER)
    assert record.fencing_token == 2
    assert _lease.renew(record, job_id="a", fencing_token=1, now=1002.0) is None


def test_the_same_job_gets_its_lease_again_with_a_greater_token():
    """A restart is no conflict; the predecessor that may still run is fenced off."""
    record = held_by("a", registered(held_by("a")), now=1005.0)
    assert record.holding.fencing_token == 2
    assert record.phase is RegistrationPhase.REGISTERED
    assert _lease.renew(record, job_id="a", fencing_token=1, now=1006.0) is None


def test_a_late_heartbeat_revives_a_lease_that_nobody_else_got():
    """Expiry alone takes nothing away: only somebody else's token does."""
    record = held_by("a")
    assert not _lease.is_live(record, 1031.0)
    revived = _lease.renew(record, job_id="a", fencing_token=1, now=1040.0)
    assert _lease.is_live(revived, 1069.0)


def test_an_expired_lease_goes_to_whoever_asks_and_keeps_the_registration():
    """Another job needs no new registration."""
    record = held_by("b", registered(held_by("a")), now=1031.0)
    assert (record.holding.job_id, record.fencing_token, record.consumer_arn) == ("b", 2, ARN)


def test_an_old_token_releases_nothing():
    """A predecessor that shuts down late does not take its successor's lease along."""
    record = held_by("a", held_by("a"))
    assert _lease.release(record, job_id="a", fencing_token=1, now=1001.0) is None


def test_the_token_grows_on_after_release_and_deregistration():
    """The record outlives both, so that no token is given twice."""
    record = registered(held_by("a"))
    record = _lease.release(record, job_id="a", fencing_token=1, now=1001.0)
    record = _lease.begin_deregistration(record, now=1001.0, grace_seconds=0)
    record = _lease.finish_deregistration(record)
    assert record.phase is RegistrationPhase.ABSENT
    assert held_by("b", record, now=1002.0).fencing_token == 2


@pytest.mark.parametrize(("now", "due"), [(1010.0, False), (1039.9, False), (1040.0, True)])
def test_deregistration_waits_for_the_grace_period_after_a_release(now, due):
    """Ten seconds after the release at 1030, not before."""
    record = _lease.release(registered(held_by("a")), job_id="a", fencing_token=1, now=1030.0)
    assert (_lease.begin_deregistration(record, now=now, grace_seconds=10) is not None) == due


@pytest.mark.parametrize(("now", "due"), [(1029.0, False), (1030.0, False), (1039.9, False), (1040.0, True)])
def test_deregistration_waits_for_the_grace_period_after_expiry(now, due):
    """A job that died at 1000 leaves a lease until 1030, and ten seconds for its restart."""
    record = registered(held_by("a"))
    assert (_lease.begin_deregistration(record, now=now, grace_seconds=10) is not None) == due


def test_a_registration_that_is_not_ours_is_forgotten_not_ended():
    """Kinesis is not to be asked: the phase is ABSENT at once."""
    record = registered(held_by("a"), registration_is_ours=False)
    record = _lease.begin_deregistration(record, now=2000.0, grace_seconds=0)
    assert (record.phase, record.fencing_token) == (RegistrationPhase.ABSENT, 1)


def test_what_we_made_is_ours_and_what_was_there_is_not():
    """The one who asked Kinesis successfully owns it."""
    record = _lease.begin_registration(held_by("a"), fencing_token=1)
    made = _lease.finish_registration(record, consumer_arn=ARN, made=True, fencing_token=1)
    found = _lease.finish_registration(record, consumer_arn=ARN, made=False, fencing_token=1)
    assert made.registration_is_ours
    assert not found.registration_is_ours


def test_what_a_dead_predecessor_had_begun_to_register_is_ours():
    """It died between Kinesis's answer and its own note: the intention tells."""
    record = _lease.begin_registration(held_by("a"), fencing_token=1)
    record = held_by("a", record, now=1001.0)
    record = _lease.finish_registration(record, consumer_arn=ARN, made=False, fencing_token=2)
    assert record.registration_is_ours


def test_a_consumer_made_again_by_somebody_else_is_not_ours_any_more():
    """The same name under another ARN is another registration."""
    record = _lease.finish_registration(registered(held_by("a")), consumer_arn=ARN + "2", made=False, fencing_token=1)
    assert not record.registration_is_ours


def test_a_clock_set_back_does_not_prolong_a_lease_beyond_its_time_to_live():
    """A lease renewed in the future counts from the first look at it."""
    record = held_by("a", now=5000.0)
    assert _lease.remaining_seconds(record, 1000.0) == TIME_TO_LIVE
    outcome = _lease.acquire(record, job_id="b", time_to_live_seconds=30, policy=ConflictPolicy.REFUSE, now=1000.0)
    assert isinstance(outcome, _lease.Refused)
    assert outcome.held_seconds == 0.0


def test_a_settled_record_runs_out_although_the_clock_was_set_back():
    """One time to live after the first look, not when the clock has caught up."""
    record = _lease.settled(held_by("a", now=5000.0), 1000.0)
    assert _lease.is_live(record, 1029.0)
    assert not _lease.is_live(record, 1030.0)


def test_small_differences_of_clocks_change_nothing():
    """Two registries on one store are never quite in step: they do not rewrite each other's records."""
    record = held_by("a", now=1003.0)
    assert _lease.settled(record, 1000.0) is record


def test_an_adopted_registration_is_ours_and_its_grace_period_counts_from_now():
    """Nobody holds it: the clock runs from the operator's word, whatever expired before."""
    record = registered(held_by("a"), registration_is_ours=False)
    adopted = _lease.adopt(record, consumer_arn=ARN, now=5000.0)
    assert (adopted.registration_is_ours, adopted.holding) == (True, None)
    assert _lease.deregistration_due_at(adopted, 5000.0, 60.0) == 5060.0


def test_a_job_that_gives_the_arn_of_a_registration_of_ours_does_not_make_it_anothers():
    """What we registered stays ours to end; what its user registered stays his."""
    assert _lease.note_given(registered(held_by("a")), consumer_arn=ARN).registration_is_ours
    assert not _lease.note_given(registered(held_by("a")), consumer_arn=ARN + "2").registration_is_ours
    assert not _lease.note_given(held_by("a"), consumer_arn=ARN).registration_is_ours


def test_adopting_leaves_a_live_lease_alone():
    """Its holder reads on, and its end is the registration's."""
    record = registered(held_by("a"), registration_is_ours=False)
    adopted = _lease.adopt(record, consumer_arn=ARN, now=1010.0)
    assert adopted.holding == record.holding
    assert _lease.deregistration_due_at(adopted, 1010.0, 60.0) == 1090.0


def test_a_refused_registration_is_taken_back_by_who_began_it():
    """Not by somebody whose intention was replaced."""
    record = _lease.begin_registration(held_by("a"), fencing_token=1)
    assert _lease.abandon_registration(record, fencing_token=2) is None
    assert _lease.abandon_registration(record, fencing_token=1).phase is RegistrationPhase.ABSENT


@pytest.mark.parametrize(
    ("fields", "arn", "ours"),
    [
        ({}, ARN, True),
        ({}, ARN + "2", False),
        ({"registration_is_ours": False}, ARN, False),
        ({"phase": RegistrationPhase.REGISTERING, "consumer_arn": ""}, ARN, True),
        ({"phase": RegistrationPhase.DEREGISTERING}, ARN, True),
        ({"phase": RegistrationPhase.DEREGISTERING}, ARN + "2", False),
        ({"phase": RegistrationPhase.ABSENT, "registration_is_ours": False}, ARN, False),
    ],
)
def test_what_is_ours_to_end(fields, arn, ours):
    """What we made or adopted under that very ARN, or had begun and not seen through."""
    assert _lease.is_ours(registered(held_by("a"), **fields), arn) == ours


class LeaseLife(RuleBasedStateMachine):
    """Any history of requests, with a clock that jumps both ways. Whole seconds, so that sums are exact."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.record = new_record()
        self.given = []
        # (job, token) -> until when it may believe itself the holder, by a clock that does not jump
        self.true_time = 0.0
        self.believes = {}
        self.jumped = False

    @rule(seconds=st.integers(0, 100))
    def time_passes(self, seconds):
        self.now += seconds
        self.true_time += seconds

    @rule(seconds=st.integers(-1000, 1000))
    def clock_jumps(self, seconds):
        self.now += seconds
        self.jumped = True

    @rule(job=st.sampled_from(JOBS), policy=st.sampled_from(ConflictPolicy))
    def acquire(self, job, policy):
        live_before = [held for held, until in self.believes.items() if until > self.true_time]
        outcome = _lease.acquire(
            self.record, job_id=job, time_to_live_seconds=TIME_TO_LIVE, policy=policy, now=self.now
        )
        if not isinstance(outcome, _lease.Granted):
            assert self.record.holding.job_id != job
            assert policy is not ConflictPolicy.TAKE_OVER
            return
        if not self.jumped and policy is not ConflictPolicy.TAKE_OVER:
            assert all(holder == job for holder, _ in live_before)
        self.record = outcome.record
        token = self.record.fencing_token
        assert token > max(self.given, default=0)
        self.given.append(token)
        if not self.jumped:
            # Whoever is overtaken learns it by the token; a job that asked for its own lease again knows.
            self.believes.clear()
            self.believes[job, token] = self.true_time + TIME_TO_LIVE

    @precondition(lambda self: self.given)
    @rule(job=st.sampled_from(JOBS), data=st.data())
    def heartbeat(self, job, data):
        token = data.draw(st.sampled_from(self.given))
        renewed = _lease.renew(self.record, job_id=job, fencing_token=token, now=self.now)
        if renewed is None:
            return
        assert token == max(self.given)
        assert _lease.is_live(renewed, self.now)
        self.record = renewed
        if not self.jumped:
            self.believes[job, token] = self.true_time + TIME_TO_LIVE

    @precondition(lambda self: self.given)
    @rule(job=st.sampled_from(JOBS), data=st.data())
    def release(self, job, data):
        token = data.draw(st.sampled_from(self.given))
        released = _lease.release(self.record, job_id=job, fencing_token=token, now=self.now)
        if released is not None:
            assert token == max(self.given)
            assert not _lease.is_live(released, self.now)
            self.record = released
            self.believes.pop((job, token), None)

    @precondition(lambda self: self.record.holding is not None)
    @rule(made=st.booleans())
    def register(self, made):
        token = self.record.fencing_token
        self.record = _lease.begin_registration(self.record, fencing_token=token)
        self.record = _lease.finish_registration(self.record, consumer_arn=ARN, made=made, fencing_token=token)
        assert self.record.registration_is_ours == made

    @rule()
    def adopt(self):
        before = _lease.remaining_seconds(self.record, self.now)
        self.record = _lease.adopt(self.record, consumer_arn=ARN, now=self.now)
        assert self.record.registration_is_ours
        assert _lease.remaining_seconds(self.record, self.now) == before
        assert not _lease.is_orphan(self.record, self.now, 1.0)

    @rule(grace=st.integers(0, 50))
    def sweep(self, grace):
        begun = _lease.begin_deregistration(self.record, now=self.now, grace_seconds=grace)
        if begun is None:
            return
        assert not _lease.is_live(self.record, self.now)
        if not self.jumped:
            assert not [held for held, until in self.believes.items() if until > self.true_time]
        self.record = begun if begun.phase is RegistrationPhase.ABSENT else _lease.finish_deregistration(begun)

    @invariant()
    def the_token_never_falls(self):
        assert self.record.fencing_token == max(self.given, default=0)

    @invariant()
    def no_lease_outlives_its_time_to_live(self):
        assert 0 <= _lease.remaining_seconds(self.record, self.now) <= TIME_TO_LIVE


TestLeaseLife = LeaseLife.TestCase
TestLeaseLife.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
