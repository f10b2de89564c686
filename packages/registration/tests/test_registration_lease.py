"""The life of a lease, without I/O."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from registry_homes import known

from penstock.registration import ConflictPolicy, ConsumerRecord, RegistrationPhase
from penstock.registration._lease import rules
from penstock.registration._lease.watch import Sight, Standing

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights"
ARN = f"{STREAM}/consumer/delays:1"
JOBS = ("a", "b", "c")
TIME_TO_LIVE = 30.0


LIVE = Sight(Standing.LIVE, 18.0)
UNPROVED = Sight(Standing.UNPROVED, 18.0)
OVER = Sight(Standing.OVER, 0.0)


def new_record(now: float = 1000.0, **fields: Any) -> ConsumerRecord:
    return ConsumerRecord(stream_arn=STREAM, consumer_name="delays", created_at=now, **fields)


def decide(
    job_id: str,
    record: ConsumerRecord | None = None,
    *,
    now: float = 1000.0,
    policy: ConflictPolicy = ConflictPolicy.REFUSE,
    sight: Sight = LIVE,
    claim: str = "",
    after_token: int | None = None,
) -> rules.Granted | rules.Refused | rules.Wait | rules.Lost:
    return rules.acquire(
        record or new_record(),
        job_id=job_id,
        time_to_live_seconds=TIME_TO_LIVE,
        policy=policy,
        sight=sight,
        now=now,
        claim=claim,
        after_token=after_token,
    )


def held_by(job_id: str, record: ConsumerRecord | None = None, **options: Any) -> ConsumerRecord:
    outcome = decide(job_id, record, **options)
    assert isinstance(outcome, rules.Granted)
    return outcome.record


def registered(record: ConsumerRecord, **fields: Any) -> ConsumerRecord:
    made = {"phase": RegistrationPhase.REGISTERED, "consumer_arn": ARN, "registration_is_ours": True}
    return replace(record, **{**made, **fields})


def test_a_second_job_is_refused_with_the_holder_and_its_age() -> None:
    """The refusal has the holder, since when it holds the consumer, and the remaining time."""
    record = held_by("a", now=1000.0)
    record = known(rules.renew(record, job_id="a", fencing_token=1, now=1020.0))
    outcome = decide("b", record, now=1025.0)
    assert isinstance(outcome, rules.Refused)
    assert (outcome.holder.job_id, outcome.held_seconds, outcome.remaining_seconds) == ("a", 25.0, 18.0)


def test_a_request_waits_for_a_holder_without_a_sign_of_life() -> None:
    """The holder's lease is watched until it is renewed or is over."""
    assert decide("b", held_by("a"), sight=UNPROVED) == rules.Wait(18.0)


@pytest.mark.parametrize("now", [-5000.0, 1000.0, 10.0**9])
def test_times_in_records_decide_nothing(now: float) -> None:
    """Whatever clock wrote them, and whatever the clock of this registry says."""
    assert isinstance(decide("b", held_by("a"), now=now), rules.Refused)
    assert isinstance(decide("b", held_by("a"), now=now, sight=OVER), rules.Granted)


def test_a_lease_that_ran_out_is_taken_back_by_its_job() -> None:
    """If no job has it: it was given back, ended by a sweep, or its rival holder is dead."""
    ended = known(rules.begin_deregistration(registered(held_by("a")), now=1001.0))
    back = held_by("a", rules.finish_deregistration(ended), after_token=1)
    assert back.holding is not None
    assert (back.holding.job_id, back.fencing_token) == ("a", 2)
    assert held_by("a", held_by("b", ended), sight=OVER, after_token=1).fencing_token == 3


def test_a_lease_that_another_job_has_is_not_taken_back() -> None:
    """Its holder is named."""
    outcome = decide("a", held_by("b", held_by("a"), sight=OVER), after_token=1)
    assert isinstance(outcome, rules.Refused)
    assert outcome.holder.job_id == "b"


def test_an_attempt_of_ones_own_whose_answer_was_lost_is_not_in_the_way() -> None:
    """The same claim is the same run of the job."""
    first = held_by("a", claim="run-1")
    again = held_by("a", first, claim="run-1", after_token=1)
    assert held_by("a", again, claim="run-1", after_token=1).fencing_token == 3
    later = held_by("a", again, claim="run-2")
    assert isinstance(decide("a", later, claim="run-1", after_token=1), rules.Lost)


@pytest.mark.parametrize("sight", [LIVE, UNPROVED])
def test_a_later_run_by_the_name_of_a_claim_is_the_same_job(sight: Sight) -> None:
    """Whatever their job ids are: it takes over at once, and the former run's error names it."""
    first = held_by("host-a-1", claim="query/1")
    later = held_by("host-b-2", first, sight=sight, claim="query/2")
    assert later.holding is not None
    assert (later.holding.job_id, later.fencing_token) == ("host-b-2", 2)
    lost = decide("host-a-1", later, sight=sight, claim="query/1", after_token=1)
    assert isinstance(lost, rules.Lost)
    assert "job 'host-b-2'" in lost.reason
    for other in ("another/2", "query", "/2", ""):
        assert not isinstance(decide("host-c-3", first, sight=LIVE, claim=other), rules.Granted)
    # Nor do claims without a name share one.
    assert not isinstance(decide("b", held_by("a", claim="1"), sight=LIVE, claim="2"), rules.Granted)


def test_a_lease_that_an_operator_ended_is_not_taken_back() -> None:
    """A new acquire is allowed."""
    ended = rules.end(held_by("a"), now=1001.0)
    assert decide("a", ended, after_token=1) == rules.Lost("an operator ended it")
    assert held_by("a", ended).fencing_token == 2


def test_taking_over_ends_the_holders_lease() -> None:
    """The new holder has a greater token, and the old one's heartbeat is refused."""
    record = held_by("b", held_by("a"), now=1001.0, policy=ConflictPolicy.TAKE_OVER)
    assert record.fencing_token == 2
    assert rules.renew(record, job_id="a", fencing_token=1, now=1002.0) is None


def test_the_same_job_gets_its_lease_again_with_a_greater_token() -> None:
    """A restart is not a conflict; the token of a predecessor that still runs is refused."""
    record = held_by("a", registered(held_by("a")), now=1005.0)
    assert record.holding is not None
    assert record.holding.fencing_token == 2
    assert record.phase is RegistrationPhase.REGISTERED
    assert rules.renew(record, job_id="a", fencing_token=1, now=1006.0) is None


def test_a_late_heartbeat_renews_a_lease_that_no_other_job_got() -> None:
    """Time alone does not end a lease: only another token or a sweep does."""
    assert (
        known(known(rules.renew(held_by("a"), job_id="a", fencing_token=1, now=10.0**9)).holding).renewed_at == 10.0**9
    )


def test_an_old_token_releases_nothing() -> None:
    """A predecessor that shuts down late does not take its successor's lease along."""
    record = held_by("a", held_by("a"))
    assert rules.release(record, job_id="a", fencing_token=1, now=1001.0) is None


def test_a_registration_that_is_not_ours_is_forgotten_not_ended() -> None:
    """Kinesis is not to be asked: the phase is ABSENT at once."""
    record = registered(held_by("a"), registration_is_ours=False)
    record = known(rules.begin_deregistration(record, now=2000.0))
    assert (record.phase, record.fencing_token) == (RegistrationPhase.ABSENT, 1)


def test_what_we_made_is_ours_and_what_was_there_is_not() -> None:
    """The registry that registered the consumer owns it."""
    record = rules.begin_registration(held_by("a"), fencing_token=1)
    made = rules.finish_registration(record, consumer_arn=ARN, made=True, fencing_token=1)
    found = rules.finish_registration(record, consumer_arn=ARN, made=False, fencing_token=1)
    assert made.registration_is_ours
    assert not found.registration_is_ours


def test_what_a_dead_predecessor_had_begun_to_register_is_ours() -> None:
    """It died between Kinesis's answer and its record: the recorded intention decides."""
    record = rules.begin_registration(held_by("a"), fencing_token=1)
    record = held_by("a", record, now=1001.0)
    record = rules.finish_registration(record, consumer_arn=ARN, made=False, fencing_token=2)
    assert record.registration_is_ours


def test_an_adopted_registration_is_ours_and_its_grace_period_counts_from_now() -> None:
    """No job holds it: what is left of an old lease is gone."""
    record = registered(held_by("a"), registration_is_ours=False)
    adopted = rules.adopt(record, consumer_arn=ARN, is_over=True, now=5000.0)
    assert (adopted.registration_is_ours, adopted.holding, adopted.idle_since) == (True, None, 5000.0)


def test_a_job_that_gives_the_arn_of_a_registration_of_ours_does_not_make_it_anothers() -> None:
    """Our registration stays ours; the user's registration stays the user's."""
    assert rules.note_given(registered(held_by("a")), consumer_arn=ARN).registration_is_ours
    assert not rules.note_given(registered(held_by("a")), consumer_arn=ARN + "2").registration_is_ours
    assert not rules.note_given(held_by("a"), consumer_arn=ARN).registration_is_ours


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
def test_what_is_ours_to_end(fields: dict[str, Any], arn: str, ours: bool) -> None:
    """Registrations that we made or adopted under the same ARN, or began without a recorded outcome."""
    assert rules.is_ours(registered(held_by("a"), **fields), arn) == ours


class LeaseLife(RuleBasedStateMachine):
    """Any history of requests, whatever the registry thinks of the lease."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.record = new_record()
        self.given: list[int] = []

    @rule(seconds=st.integers(-1000, 1000))
    def clock_jumps(self, seconds: int) -> None:
        self.now += seconds

    @rule(
        job=st.sampled_from(JOBS),
        policy=st.sampled_from(ConflictPolicy),
        sight=st.sampled_from([LIVE, UNPROVED, OVER]),
        takes_back=st.booleans(),
        data=st.data(),
    )
    def acquire(self, job: str, policy: ConflictPolicy, sight: Sight, takes_back: bool, data: st.DataObject) -> None:
        after = data.draw(st.sampled_from(self.given)) if takes_back and self.given else None
        holder = self.record.holding
        outcome = decide(job, self.record, now=self.now, policy=policy, sight=sight, after_token=after)
        if isinstance(outcome, rules.Lost):
            assert after is not None
            return
        if not isinstance(outcome, rules.Granted):
            assert holder is not None
            assert holder.job_id != job
            assert policy is not ConflictPolicy.TAKE_OVER
            assert sight is not OVER
            return
        if holder is not None and holder.job_id != job:
            assert sight is OVER or policy is ConflictPolicy.TAKE_OVER
        self.record = outcome.record
        token = self.record.fencing_token
        assert token > max(self.given, default=0)
        self.given.append(token)

    @precondition(lambda self: self.given)
    @rule(job=st.sampled_from(JOBS), data=st.data())
    def heartbeat(self, job: str, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.given))
        renewed = rules.renew(self.record, job_id=job, fencing_token=token, now=self.now)
        if renewed is not None:
            assert token == max(self.given)
            self.record = renewed

    @precondition(lambda self: self.given)
    @rule(job=st.sampled_from(JOBS), data=st.data())
    def release(self, job: str, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.given))
        released = rules.release(self.record, job_id=job, fencing_token=token, now=self.now)
        if released is not None:
            assert token == max(self.given)
            assert released.holding is None
            self.record = released

    @precondition(lambda self: self.record.holding is not None)
    @rule()
    def end(self) -> None:
        assert self.record.holding is not None
        token = self.record.holding.fencing_token
        self.record = known(rules.end(self.record, now=self.now))
        for job in JOBS:
            assert isinstance(decide(job, self.record, after_token=token), rules.Lost)

    @precondition(lambda self: self.record.holding is not None)
    @rule(made=st.booleans())
    def register(self, made: bool) -> None:
        token = self.record.fencing_token
        self.record = rules.begin_registration(self.record, fencing_token=token)
        self.record = rules.finish_registration(self.record, consumer_arn=ARN, made=made, fencing_token=token)
        assert self.record.registration_is_ours == made

    @rule(is_over=st.booleans())
    def adopt(self, is_over: bool) -> None:
        before = self.record.holding
        self.record = rules.adopt(self.record, consumer_arn=ARN, is_over=is_over, now=self.now)
        assert self.record.registration_is_ours
        assert self.record.holding == (None if is_over else before)

    @rule()
    def sweep(self) -> None:
        begun = rules.begin_deregistration(self.record, now=self.now)
        if begun is not None:
            self.record = begun if begun.phase is RegistrationPhase.ABSENT else rules.finish_deregistration(begun)

    @invariant()
    def the_token_never_falls(self) -> None:
        assert self.record.fencing_token == max(self.given, default=0)


TestLeaseLife = LeaseLife.TestCase
TestLeaseLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_refused_registration_is_undone_only_by_its_own_lease() -> None:
    """A lease whose intention was replaced cannot undo it."""
    record = rules.begin_registration(held_by("a"), fencing_token=1)
    assert rules.abandon_registration(record, fencing_token=2) is None
    assert known(rules.abandon_registration(record, fencing_token=1)).phase is RegistrationPhase.ABSENT


def test_a_consumer_made_again_by_somebody_else_is_not_ours_any_more() -> None:
    """The same name under another ARN is another registration."""
    record = rules.finish_registration(registered(held_by("a")), consumer_arn=ARN + "2", made=False, fencing_token=1)
    assert not record.registration_is_ours


def test_a_consumer_that_is_disowned_is_left_registered() -> None:
    """Only its holder, or a job whose lease was ended, can disown it; never under another job, nor another ARN."""

    def given_back(record: ConsumerRecord | None, arn: str = ARN) -> ConsumerRecord | None:
        return rules.release(known(record), job_id="a", fencing_token=1, now=1.0, disowned_arn=arn)

    held = registered(held_by("a"))
    left = known(given_back(held))
    assert (left.holding, left.registration_is_ours) == (None, False)
    assert known(rules.begin_deregistration(left, now=2.0)).phase is RegistrationPhase.ABSENT
    assert not known(given_back(rules.end(held, now=1.0))).registration_is_ours
    assert given_back(registered(held_by("b", rules.end(held, now=1.0)))) is None
    for other in ("", f"{ARN}0"):
        assert known(given_back(held, other)).registration_is_ours
        assert given_back(rules.end(held, now=1.0), other) is None
