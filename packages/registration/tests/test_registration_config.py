"""Options of registration."""

from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.registration import (
    FLIP_128_KEYS,
    AcquireRequest,
    ConflictPolicy,
    LeaseSettings,
    RegistrarConfig,
    RegistrationConfig,
    RegistrationStrategy,
    store_location,
)
from penstock.registration.errors import InvalidRequestError, RegistrationOptionError

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/flights/consumer/delays:1700000001"


def test_a_missing_consumer_name_is_refused_with_the_reason():
    """No name is made up, and the error says what a random one would cost."""
    with pytest.raises(RegistrationOptionError, match=r"efo needs a consumer name.*billed by the hour") as raised:
        RegistrationConfig(stream_names=("flights",))
    assert raised.value.option == "consumer_name"


@pytest.mark.parametrize("name", ["", "with space", "x" * 129, "ümlaut"])
def test_a_name_that_kinesis_would_refuse_is_refused_here(name):
    """Names are checked before anything is sent."""
    with pytest.raises(RegistrationOptionError, match="1 to 128 characters"):
        RegistrationConfig(consumer_name=name)


def test_none_lists_every_stream_without_an_arn():
    """All missing ones are named at once."""
    with pytest.raises(RegistrationOptionError, match=r"missing for carriers, weather$") as raised:
        RegistrationConfig(
            strategy=RegistrationStrategy.NONE,
            stream_names=("carriers", "flights", "weather"),
            consumer_arns={"flights": ARN},
        )
    assert raised.value.option == "consumer_arns"


def test_none_takes_the_consumer_name_from_the_arn():
    """No consumer name is needed with ARNs."""
    config = RegistrationConfig(
        strategy=RegistrationStrategy.NONE, stream_names=("flights",), consumer_arns={"flights": ARN}
    )
    assert config.consumer_name_for("flights") == "delays"


@pytest.mark.parametrize(
    ("arns", "name", "option"),
    [
        ({"flights": "arn:aws:s3:::bucket"}, None, "consumer_arns[flights]"),
        ({"weather": ARN}, None, "consumer_arns[weather]"),
        ({"flights": ARN}, "other", "consumer_name"),
    ],
)
def test_arns_that_contradict_are_refused(arns, name, option):
    """An ARN must be one of a consumer, of that stream, and of that name."""
    with pytest.raises(RegistrationOptionError) as raised:
        RegistrationConfig(strategy=RegistrationStrategy.NONE, consumer_arns=arns, consumer_name=name)
    assert raised.value.option == option


def test_a_stream_without_an_arn_is_named_when_its_consumer_is_asked_for():
    """Also when the streams were not known at construction."""
    config = RegistrationConfig(strategy=RegistrationStrategy.NONE, consumer_arns={"flights": ARN})
    with pytest.raises(RegistrationOptionError, match="missing for weather"):
        config.consumer_name_for("weather")


def test_strategies_and_policies_may_be_given_by_their_names():
    """As options of a data source are: text is the same as the member."""
    config = RegistrationConfig(strategy="none", consumer_arns={"flights": ARN})
    request = AcquireRequest(
        stream_name="flights", job_id="job", consumer_name="delays", strategy="eager", conflict_policy="wait"
    )
    assert config.strategy is RegistrationStrategy.NONE
    assert request.strategy is RegistrationStrategy.EAGER
    assert request.conflict_policy is ConflictPolicy.WAIT


def test_arns_are_refused_with_a_strategy_that_would_not_use_them():
    """Lazy finds ARNs itself: one that is given would be ignored silently."""
    with pytest.raises(RegistrationOptionError, match="the strategy none"):
        RegistrationConfig(consumer_name="delays", consumer_arns={"flights": ARN})


def test_defaults_are_those_of_flip_128():
    """10 retries, 200 ms, 1,000 ms, 1.5, for each of the three calls."""
    config = RegistrationConfig(consumer_name="delays")
    assert config.strategy is RegistrationStrategy.LAZY
    for call in ("register", "deregister", "list"):
        policy = config.policy(call)
        assert (policy.base, policy.maximum) == (timedelta(milliseconds=200), timedelta(milliseconds=1000))
        assert (policy.exponent, policy.max_attempts) == (1.5, 11)


def test_every_flip_128_key_sets_its_field():
    """Each property name leads to a field that exists, and its value arrives there."""
    names = {field.name for field in fields(RegistrationConfig)}
    assert set(FLIP_128_KEYS.values()) <= names
    assert len(FLIP_128_KEYS) == 14
    config = RegistrationConfig.from_properties(
        {
            "flink.stream.efo.consumername": "delays",
            "flink.stream.efo.registration": "EAGER",
            "flink.stream.registerstreamconsumer.maxretries": "3",
            "flink.stream.deregisterstreamconsumer.backoff.base": "50",
            "flink.stream.liststreamconsumers.backoff.max": "2000",
            "flink.stream.liststreamconsumers.backoff.expconst": "2.5",
            "flink.stream.recordpublisher": "efo",
        },
        ["flights"],
    )
    assert config.strategy is RegistrationStrategy.EAGER
    assert config.register_max_retries == 3
    assert config.deregister_backoff_base == timedelta(milliseconds=50)
    assert (config.list_backoff_max, config.list_backoff_expconst) == (timedelta(seconds=2), 2.5)


def test_consumer_arns_come_from_properties():
    """`efo.consumerarn.<stream>` gives the ARN of that stream."""
    config = RegistrationConfig.from_properties(
        {"flink.stream.efo.registration": "none", "flink.stream.efo.consumerarn.flights": ARN}, ["flights"]
    )
    assert config.consumer_arns == {"flights": ARN}


@pytest.mark.parametrize("key", [key for key in FLIP_128_KEYS if not key.endswith("consumername")])
def test_a_property_that_does_not_parse_is_named(key):
    """The error names the property as the user wrote it."""
    with pytest.raises(RegistrationOptionError) as raised:
        RegistrationConfig.from_properties({"flink.stream.efo.consumername": "delays", key: "nonsense"})
    assert raised.value.option == key


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"register_max_retries": -1}, "register_max_retries"),
        ({"list_backoff_base": timedelta(0)}, "list_backoff_base"),
        ({"deregister_backoff_max": timedelta(milliseconds=1)}, "deregister_backoff_max"),
        ({"register_backoff_expconst": 0.5}, "register_backoff_expconst"),
        ({"deregister_timeout": timedelta(0)}, "deregister_timeout"),
    ],
)
def test_a_retry_option_out_of_range_is_named(options, option):
    """Relations between limits are checked on construction."""
    with pytest.raises(RegistrationOptionError) as raised:
        RegistrarConfig(**options)
    assert raised.value.option == option


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"default_time_to_live": timedelta(0)}, "default_time_to_live"),
        ({"longest_time_to_live": timedelta(seconds=1)}, "longest_time_to_live"),
        ({"grace_period": timedelta(seconds=-1)}, "grace_period"),
    ],
)
def test_a_lease_setting_out_of_range_is_named(options, option):
    """Relations between times are checked on construction."""
    with pytest.raises(RegistrationOptionError) as raised:
        LeaseSettings(**options)
    assert raised.value.option == option


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"stream_name": ""}, "stream_name"),
        ({"job_id": ""}, "job_id"),
        ({"consumer_name": ""}, "consumer_name"),
        ({"consumer_name": "a b"}, "consumer_name"),
        ({"consumer_arn": ARN}, "consumer_arn"),
        ({"strategy": RegistrationStrategy.NONE}, "consumer_arn"),
        ({"strategy": RegistrationStrategy.NONE, "consumer_arn": ARN, "consumer_name": "other"}, "consumer_name"),
        ({"strategy": "sometimes"}, "strategy"),
        ({"conflict_policy": "fight"}, "conflict_policy"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"time_to_live": timedelta(seconds=-1)}, "time_to_live"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(options, field):
    """The error names the field."""
    with pytest.raises(InvalidRequestError) as raised:
        AcquireRequest(**{"stream_name": "flights", "job_id": "job", "consumer_name": "delays", **options})
    assert raised.value.field == field


def test_contradicting_properties_are_named_as_they_were_written():
    """A property that is wrong only beside another is named by its key, and so is the other."""
    with pytest.raises(RegistrationOptionError) as raised:
        RegistrationConfig.from_properties(
            {"flink.stream.efo.consumername": "delays", "flink.stream.registerstreamconsumer.backoff.max": "1"}
        )
    assert raised.value.option == "flink.stream.registerstreamconsumer.backoff.max"
    assert "flink.stream.registerstreamconsumer.backoff.base" in raised.value.reason


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("flink.stream.registerstreamconsumer.backoff.base", "9" * 20),
        ("flink.stream.liststreamconsumers.backoff.expconst", "nan"),
    ],
)
def test_a_property_that_no_clock_can_count_is_named(key, text):
    """A number too large for a time, and what is no number to reckon with."""
    properties = {"flink.stream.efo.consumername": "delays", key: text}
    with pytest.raises(RegistrationOptionError) as refused:
        RegistrationConfig.from_properties(properties)
    assert refused.value.option == key


@pytest.mark.parametrize(
    "url",
    ["sqlite:///var/lib/leases#1.db", "sqlite:///var/lib/leases.db?mode=rwc", "dynamodb://leases?region=eu-west-1"],
)
def test_a_store_whose_name_would_be_cut_off_is_refused(url):
    """What stands behind ? or # is no part of a path in a URL: another store would be used, without a word."""
    with pytest.raises(RegistrationOptionError, match="%3F") as refused:
        store_location(url)
    assert refused.value.option == "store"
    assert store_location("sqlite:///var/lib/leases%231.db") == Path("/var/lib/leases#1.db")
