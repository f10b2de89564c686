"""Options of registration."""

from datetime import timedelta
from typing import Any

import pytest

from penstock.registration import (
    AcquireRequest,
    ConflictPolicy,
    LeaseSettings,
    RegistrarConfig,
    RegistrationStrategy,
)
from penstock.registration.errors import RegistrationOptionError

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights/consumer/delays:1700000001"


def test_strategies_and_policies_may_be_given_by_their_names() -> None:
    """As options of a data source are: text is the same as the member."""
    options: dict[str, Any] = {"strategy": "eager", "conflict_policy": "wait"}
    request = AcquireRequest(stream_name="flights", job_id="job", consumer_name="delays", **options)
    assert request.strategy is RegistrationStrategy.EAGER
    assert request.conflict_policy is ConflictPolicy.WAIT


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        (RegistrarConfig, "register_timeout", timedelta(seconds=-1)),
        (RegistrarConfig, "deregister_timeout", timedelta(0)),
        (LeaseSettings, "default_time_to_live", timedelta(0)),
        (LeaseSettings, "longest_time_to_live", timedelta(seconds=1)),
        (LeaseSettings, "grace_period", timedelta(seconds=-1)),
    ],
)
def test_a_time_out_of_range_is_refused_by_name(kind: Any, option: str, value: timedelta) -> None:
    with pytest.raises(RegistrationOptionError) as raised:
        kind(**{option: value})
    assert raised.value.option == option


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"stream_name": ""}, "stream_name"),
        ({"job_id": ""}, "job_id"),
        ({"consumer_name": ""}, "consumer_name"),
        ({"consumer_name": "a b"}, "consumer_name"),
        ({"consumer_name": "x" * 129}, "consumer_name"),
        ({"consumer_name": "ümlaut"}, "consumer_name"),
        ({"consumer_arn": ARN}, "consumer_arn"),
        ({"strategy": RegistrationStrategy.NONE, "consumer_arn": "arn:aws:s3:::bucket"}, "consumer_arn"),
        ({"strategy": RegistrationStrategy.NONE, "consumer_arn": ARN, "stream_name": "weather"}, "consumer_arn"),
        ({"strategy": RegistrationStrategy.NONE}, "consumer_arn"),
        ({"strategy": RegistrationStrategy.NONE, "consumer_arn": ARN, "consumer_name": "other"}, "consumer_name"),
        ({"strategy": "sometimes"}, "strategy"),
        ({"conflict_policy": "fight"}, "conflict_policy"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"time_to_live": timedelta(seconds=-1)}, "time_to_live"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(options: dict[str, Any], field: str) -> None:
    """The error names the field."""
    with pytest.raises(RegistrationOptionError) as raised:
        AcquireRequest(**{"stream_name": "flights", "job_id": "job", "consumer_name": "delays", **options})
    assert raised.value.option == field
