"""The metrics of a sweep."""

from typing import Any

from penstock.registration import ConsumerRecord, RegistrationPhase
from penstock.registration._lease.watch import Watch
from penstock.registration._local.registry import SweepMetrics


def test_only_what_is_ours_is_an_orphan_that_costs() -> None:
    """A consumer that another program registered, and that no job holds any more, does not count."""
    idle: dict[str, Any] = {
        "stream_arn": "arn:aws:kinesis:eu-west-1:123456789012:stream/flights",
        "created_at": 0.0,
        "idle_since": 0.0,
        "consumer_arn": "arn",
    }
    records = [
        ConsumerRecord(consumer_name="made", phase=RegistrationPhase.REGISTERED, registration_is_ours=True, **idle),
        ConsumerRecord(consumer_name="begun", phase=RegistrationPhase.REGISTERING, **{**idle, "consumer_arn": ""}),
        ConsumerRecord(consumer_name="ending", phase=RegistrationPhase.DEREGISTERING, **idle),
        ConsumerRecord(consumer_name="theirs", phase=RegistrationPhase.REGISTERED, **idle),
        ConsumerRecord(consumer_name="gone", **idle),
    ]
    metrics = SweepMetrics()
    metrics.swept(records, Watch(0.0))
    assert metrics.counts["flights"] == {"consumers": 4, "leases": 0, "orphanConsumers": 3}
