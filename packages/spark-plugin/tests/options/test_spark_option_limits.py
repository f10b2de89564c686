"""What options must keep to together is checked as they are parsed: before anything is asked of AWS."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StringType, StructType

from penstock.spark_plugin import FirehoseDataSource, KinesisDataSource, KinesisOptions
from penstock.spark_plugin._options.spec import OptionSpec, OptionType
from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin._reading.session.configs import reader_config, registrar_config
from penstock.spark_plugin._writing._sinks import sink_config
from penstock.spark_plugin.errors import ContradictoryOptionsError, InvalidOptionError, OptionError, UnknownOptionError

NUMBERS = (OptionType.INTEGER, OptionType.NUMBER, OptionType.SECONDS, OptionType.MILLISECONDS, OptionType.BYTES)
NUMERIC = [spec for spec in OPTIONS if spec.type in NUMBERS]
SERVICE_LIMITS = ("maxBatchSizeInBytes", "maxRecordSizeInBytes")
"""Limits of a destination: the writer says them by their option as the write is planned."""


def parse(options: dict[str, str]) -> KinesisOptions:
    efo = {"recordPublisher": "efo", "efoConsumerName": "c"}
    return KinesisOptions.parse({"streamName": "s", **efo, **options}, environ={})


def number(spec: OptionSpec) -> st.SearchStrategy[str]:
    """Small and large ones, those at the option's limits, and some that are none."""
    least = 0 if spec.minimum is None else spec.minimum
    near = [least, least + 1, least * 2 + 1, 10_000, 2**31 - 1, 2**63, 10**30]
    numbers = st.one_of(st.sampled_from(near), st.integers(0, 5000))
    if spec.type is OptionType.INTEGER:
        return numbers.map(lambda value: f"{value:.0f}")
    fractions = st.floats(0, 1e12, allow_nan=False).map(lambda value: f"{value:.6f}")
    return st.one_of(numbers.map(lambda value: f"{value:f}"), fractions, st.sampled_from(["1e309", "-1"]))


GIVEN = st.dictionaries(st.sampled_from(NUMERIC), st.none(), max_size=6).flatmap(
    lambda specs: st.fixed_dictionaries({spec.name: number(spec) for spec in specs})
)


@settings(max_examples=400)
@given(GIVEN)
def test_what_is_accepted_can_be_used(given_options: dict[str, str]) -> None:
    """Numbers that pass make the settings of each package that reading and writing stand on; no call fails by them."""
    try:
        options = parse(given_options)
    except OptionError:
        return
    reader_config(options)
    registrar_config(options)
    if not any(name in given_options for name in SERVICE_LIMITS):
        sink_config(options)


VERBS = [spec.name.removesuffix("BackoffBase") for spec in OPTIONS if spec.name.endswith("BackoffBase")]


def flink_name(option: str) -> str:
    return next(spec.flink for spec in OPTIONS if spec.name == option and spec.flink)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("in_lower_case", [False, True])
def test_a_longest_delay_below_the_first_is_named_as_it_was_written(verb: str, in_lower_case: bool) -> None:
    """By the user's key, though Spark hands it over in lower case; and the default that it contradicts is told."""
    key = flink_name(f"{verb}BackoffMax")
    with pytest.raises(ContradictoryOptionsError) as caught:
        parse({key.lower() if in_lower_case else key: "100"})
    told = str(caught.value)
    assert caught.value.options == (key, f"{verb}BackoffBase")
    assert f"'{key}'" in told
    assert "100 ms" in told
    parse({key: "100", flink_name(f"{verb}BackoffBase"): "100"})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"fetchBufferSize": "1m"}, ("bufferBytesPerShard", "fetchBufferSize")),
        ({"sink.requests.max-buffered": "500"}, ("sink.requests.max-buffered", "sink.batch.max-size")),
        ({"sink.flush-buffer.size": "1k"}, ("maxRecordSizeInBytes", "sink.flush-buffer.size")),
        (
            {"aws.credentials.provider.profile.name": "p", "awsAccessKey": "a", "awsSecretKey": "b"},
            ("aws.credentials.provider.profile.name", "awsAccessKey"),
        ),
    ],
)
def test_contradictions_have_the_names_that_were_written(options: dict[str, str], named: tuple[str, str]) -> None:
    """Of whichever connector; an option that was left out has its own."""
    given_options = {**options, **({"sink.batch.max-size": "500"} if "sink.requests.max-buffered" in options else {})}
    with pytest.raises(ContradictoryOptionsError) as caught:
        parse(given_options)
    assert caught.value.options == named
    for name in named:
        assert f"'{name}'" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("flink.stream.registerstreamconsumer.backoff.base", "0"),
        ("flink.shard.getrecords.intervalmillis", "100"),
        ("kinesis.getRecords.numberOfRecordsPerFetch", "10001"),
        ("flink.shard.subscribetoshard.backoff.max", "99999999999999999999"),
        ("flink.shard.subscribetoshard.maxretries", "many"),
    ],
)
def test_a_value_out_of_range_is_named_as_it_was_written(key: str, text: str) -> None:
    """Each limit that a package has is the option's own."""
    with pytest.raises(InvalidOptionError, match=f"'{key}'") as caught:
        parse({key: text})
    assert caught.value.option == key


@pytest.mark.parametrize(
    ("key", "text", "most"),
    [
        ("maxInFlightRequests", "501", "500"),
        ("sink.requests.max-inflight", "10000", "500"),
        ("sink.producer.collection-max-count", "501", "500"),
        ("sink.requests.max-buffered", "1000001", "1000000"),
        ("minPartitions", "10001", "10000"),
        ("readerPort", "65536", "65535"),
        ("fetchBufferSize", "257gb", "274877906944"),
    ],
)
def test_a_number_that_no_machine_has_room_for_is_refused(key: str, text: str, most: str) -> None:
    """Connections, memory and tasks have an end, which is told in full."""
    with pytest.raises(InvalidOptionError, match=f"option '{re.escape(key)}' is '{text}'; it must be at most {most}$"):
        parse({key: text})
    for spec in OPTIONS:
        if spec.maximum is not None and spec.type in (OptionType.INTEGER, OptionType.BYTES):
            parse({"bufferBytes": "1m", "bufferBytesPerShard": "1m", spec.name: f"{spec.maximum:.0f}"})


def test_no_number_of_retries_is_too_large() -> None:
    """Java's largest number is a usual way to say for ever."""
    options = parse({"flink.shard.subscribetoshard.maxretries": str(2**31 - 1)})
    assert options.subscribe_to_shard_max_retries == 2**31 - 1


def test_options_that_are_made_in_code_keep_to_the_same() -> None:
    """Without a name that a user wrote, the error has the canonical one."""
    wrong: dict[str, Any] = {"subscribe_to_shard_backoff_max": 1.0}
    with pytest.raises(ContradictoryOptionsError, match="subscribeToShardBackoffMax"):
        KinesisOptions(stream_name=("s",), record_publisher="efo", efo_consumer_name="c", **wrong)


@pytest.mark.parametrize("name", ["initialPosition", "initialTimestamp", "endingTimestamp", "flink.stream.initpos"])
def test_a_time_that_no_calendar_has_is_refused(name: str) -> None:
    """By the option's name, as any other text that is no time."""
    with pytest.raises(InvalidOptionError, match=f"option '{name}' is '4611686018427387903'"):
        parse({name: "4611686018427387903"})


def test_an_option_per_stream_without_its_stream_is_told_how_it_is_written() -> None:
    """The name alone is not an option."""
    with pytest.raises(UnknownOptionError, match=r"did you mean 'efoConsumerArn\.<stream>'"):
        parse({"efoConsumerArn": "arn"})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"maxBatchSize": "600"}, "option 'maxBatchSize' is '600'; it must be at most 500"),
        ({"sink.batch.max-size": "600"}, "option 'sink.batch.max-size' is '600'; it must be at most 500"),
        (
            {"sink.flush-buffer.size": "20m"},
            "option 'sink.flush-buffer.size' is '20971520'; it must be at most 10485760",
        ),
        (
            {"aggregation": "true", "sink.requests.max-buffered": "1000"},
            "option 'sink.requests.max-buffered' is '1000'; it must be more than maxBatchSize, 10000",
        ),
        ({"maxBatchSizeInBytes": "20m"}, "option 'maxBatchSizeInBytes' is '20971520'; it must be at most 10485760"),
        ({"maxBatchSizeInBytes": "200m"}, "option 'maxBatchSizeInBytes' is '209715200'; it must be at most 134217728"),
        (
            {"aggregation": "true", "maxBufferedRequests": "1000"},
            "option 'maxBufferedRequests' is '1000'; it must be more than maxBatchSize, 10000",
        ),
        (
            {"aggregation": "true", "maxRecordSizeInBytes": "5m"},
            "option 'maxBatchSizeInBytes' is '4718592'; it must be at least maxRecordSizeInBytes, 5242880",
        ),
    ],
)
def test_a_limit_of_the_destination_is_told_by_its_option(options: dict[str, str], told: str) -> None:
    """As the write is planned, with the value and what it may be."""
    schema = StructType().add("data", BinaryType()).add("partitionKey", StringType())
    with pytest.raises(InvalidOptionError, match=re.escape(told)):
        KinesisDataSource({"streamName": "s", "region": "us-east-1", **options}).writer(schema, overwrite=False)


@pytest.mark.parametrize("limit", ["maxBatchSize", "maxBufferedRequests", "maxBatchSizeInBytes", "sink.batch.max-size"])
def test_a_limit_that_is_given_as_its_default_is_given(limit: str) -> None:
    """What is left out suits the destination; what is written holds, whatever its value."""
    size = "5m" if limit.endswith("Bytes") else "10000" if limit.endswith("Requests") else "500"
    many = {"maxBatchSize": "9000"} if limit == "maxBufferedRequests" else {}
    left_out, given_options = (
        sink_config(parse({"aggregation": "true"})),
        parse({"aggregation": "true", limit: size, **many}),
    )
    name = "max_batch_size" if "." in limit else re.sub("(?=[A-Z])", "_", limit).lower()
    assert getattr(sink_config(given_options), name) == getattr(given_options, name) != getattr(left_out, name)


def test_both_sizes_of_aggregates_may_be_those_of_a_request() -> None:
    """A record that fills a request of 5 MiB, by options that name both."""
    schema = StructType().add("data", BinaryType()).add("partitionKey", StringType())
    sizes = {"maxRecordSizeInBytes": "5m", "maxBatchSizeInBytes": "5m"}
    source = KinesisDataSource({"streamName": "s", "region": "us-east-1", "aggregation": "true", **sizes})
    source.writer(schema, overwrite=False)


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("maxBatchSizeInBytes", "'5242880'; it must be at most 4194304"),
        ("maxRecordSizeInBytes", "'1048576'; it must be at most 1024000"),
    ],
)
def test_a_limit_that_firehose_does_not_take_is_refused_whatever_the_default(limit: str, told: str) -> None:
    """The defaults of Kinesis are not taken for left out, where somebody writes them."""
    text = "5m" if limit == "maxBatchSizeInBytes" else "1m"
    source = FirehoseDataSource({"deliveryStreamName": "d", "region": "us-east-1", limit: text})
    with pytest.raises(InvalidOptionError, match=re.escape(f"option '{limit}' is {told}")):
        source.writer(StructType().add("data", BinaryType()), overwrite=False)


@pytest.mark.parametrize(
    ("option", "text"), [("maxAttempts", "7"), ("timeToLive", "7s"), ("deadLetterPath", "/letters")]
)
def test_what_fails_on_the_first_error_has_no_second_attempt(option: str, text: str) -> None:
    """Nor a dead letter: one of the two would do nothing, and is refused by the name that was written."""
    for name in ("failOnError", "sink.fail-on-error"):
        with pytest.raises(ContradictoryOptionsError) as caught:
            parse({option: text, name: "true"})
        assert caught.value.options == (option, name)
        parse({option: text, name: "false"})
    assert parse({"failOnError": "true", "maxAttempts": "1"}).max_attempts == 1


def test_an_endpoint_of_another_region_is_refused() -> None:
    """Whatever is signed for one region, the other refuses, or has another stream of the name."""
    elsewhere = {"endpointUrl": "https://kinesis.us-east-1.amazonaws.com"}
    with pytest.raises(ContradictoryOptionsError, match="is in us-east-1, and requests would be for eu-west-1"):
        parse({"region": "eu-west-1", **elsewhere})
    assert parse({"region": "us-east-1", **elsewhere}).region == "us-east-1"


@pytest.mark.parametrize("call", ["subscribeToShard", "getRecords", "getShardIterator"])
def test_attempts_without_end_have_pauses(call: str) -> None:
    """Thousands of calls a second would take the account's limits from everybody; a number of attempts bounds them."""
    none = {f"{call}BackoffBase": "0", f"{call}BackoffMax": "0"}
    with pytest.raises(ContradictoryOptionsError, match=f"{call}MaxRetries"):
        parse(none)
    parse({**none, f"{call}MaxRetries": "3"})
    parse({f"{call}BackoffBase": "0", f"{call}BackoffMax": "10"})
