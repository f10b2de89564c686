from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._options.docs import fill, generated
from penstock.spark_plugin._options.foreign import foreign_options
from penstock.spark_plugin._options.spec import field_name
from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin._options.values import PositionOptionType
from penstock.spark_plugin.errors import (
    ContradictoryOptionsError,
    InvalidOptionError,
    MissingOptionError,
    OptionError,
    UnknownOptionError,
)


def parse(**options: str) -> KinesisOptions:
    return KinesisOptions.parse({"streamName": "flights", **options}, environ={})


def parse_keys(options: dict[str, str]) -> KinesisOptions:
    return KinesisOptions.parse(options, environ={})


def test_every_option_of_the_table_is_a_field_and_every_field_an_option() -> None:
    """The table and the typed options cannot drift apart."""
    assert {field_name(spec.name) for spec in OPTIONS} == {one.name for one in fields(KinesisOptions)} - {"written"}


def test_documented_defaults_are_the_defaults() -> None:
    """A default that the table states as a value is what the field holds when the option is left out."""
    left_out = parse()
    for spec in OPTIONS:
        if spec.default is None or spec.prefix:
            continue
        try:
            written = parse(**{spec.name: spec.default})
        except OptionError:
            continue  # a default told in words
        assert getattr(written, field_name(spec.name)) in (
            getattr(left_out, field_name(spec.name)),
            spec.default,
        ), spec.name


def test_no_two_options_share_a_name() -> None:
    """Names and aliases are unique, whatever their letter case."""
    seen: dict[str, str] = {}
    for spec in OPTIONS:
        assert seen.setdefault(spec.name.lower(), spec.name) == spec.name
    for one in foreign_options():
        ours = seen.get(one.name.lower())
        assert ours in (None, one.option), one.name


@given(st.sampled_from([spec.name for spec in OPTIONS if not spec.prefix]), st.randoms())
def test_options_are_found_in_any_letter_case(name: str, random: object) -> None:
    """Spark hands keys over in lower case; users write them in any."""
    written = "".join(
        char.upper() if random.random() < 0.5 else char.lower()  # type: ignore[attr-defined]  # a Random
        for char in name
    )
    try:
        KinesisOptions.parse({"streamName": "s", written: "LATEST"}, environ={})
    except UnknownOptionError:
        pytest.fail(f"{written} is not found")
    except OptionError:
        pass  # the value is none of this option


def test_an_unknown_option_names_the_nearest_one() -> None:
    """A typing error is answered with the option that was meant."""
    with pytest.raises(UnknownOptionError, match="recordPublisher") as caught:
        parse(recordPublsher="efo")
    assert caught.value.nearest == "recordPublisher"


def test_an_option_like_nothing_names_none() -> None:
    """A name that resembles no option is not answered with a guess."""
    with pytest.raises(UnknownOptionError) as caught:
        parse(zzzzqqqq="1")
    assert caught.value.nearest is None


def test_sparks_own_keys_are_no_unknown_options() -> None:
    """Spark adds the checkpoint's location to a stream writer's options."""
    assert parse(checkpointlocation="/tmp/x").stream_name == ("flights",)


def test_flink_properties_mean_the_same() -> None:
    """FLIP-128's and Flink's AWS keys are accepted as they are written there."""
    options = parse_keys(
        {
            "stream": "flights",
            "aws.region": "eu-west-1",
            "aws.endpoint": "http://localhost:4567",
            "flink.stream.recordpublisher": "EFO",
            "flink.stream.efo.consumername": "me",
            "flink.stream.efo.registration": "EAGER",
            "flink.stream.initpos": "AT_TIMESTAMP",
            "flink.stream.initpos.timestamp": "1459799926.480",
            "flink.shard.subscribetoshard.maxretries": "7",
            "flink.shard.subscribetoshard.backoff.base": "10",
        }
    )
    assert (options.region, options.record_publisher, options.efo_registration) == ("eu-west-1", "efo", "eager")
    assert options.efo_consumer_name == "me"
    assert options.initial_position is not None
    assert options.initial_position.timestamp == datetime.fromtimestamp(1459799926.48, UTC)
    assert (options.subscribe_to_shard_max_retries, options.subscribe_to_shard_backoff_base) == (7, 10)


def test_databricks_options_mean_the_same() -> None:
    """The names of Databricks' Kinesis source are accepted."""
    options = parse_keys(
        {
            "streamName": "a,b",
            "region": "us-west-2",
            "initialPosition": '{"at_timestamp": "2026-01-31T12:00:00Z"}',
            "consumerMode": "efo",
            "consumerName": "me",
            "awsAccessKey": "key",
            "awsSecretKey": "secret",
            "roleArn": "arn:aws:iam::123456789012:role/r",
            "roleExternalId": "external",
        }
    )
    assert options.stream_name == ("a", "b")
    assert (options.record_publisher, options.efo_consumer_name) == ("efo", "me")
    assert options.initial_position is not None
    assert options.initial_position.type is PositionOptionType.AT_TIMESTAMP
    assert options.aws_secret_access_key == "secret"


def test_aws_connector_options_mean_the_same() -> None:
    """The names and values of the AWS connector for Spark are accepted."""
    options = parse_keys(
        {
            "kinesis.region": "us-east-2",
            "kinesis.streamName": "teststream",
            "kinesis.consumerType": "SubscribeToShard",
            "kinesis.endpointUrl": "https://kinesis.us-east-2.amazonaws.com",
            "kinesis.startingPosition": "TRIM_HORIZON",
            "kinesis.consumerName": "me",
        }
    )
    assert options.record_publisher == "efo"
    assert options.initial_position is not None
    assert options.initial_position.type is PositionOptionType.TRIM_HORIZON
    assert parse_keys({"streamName": "s", "kinesis.consumerType": "GetRecords"}).record_publisher == "polling"


@pytest.mark.parametrize(
    ("text", "seconds"), [("5s", 5.0), ("250ms", 0.25), ("2m", 120.0), ("1.5", 1.5), ("2 minutes", 120.0)]
)
def test_durations(text: str, seconds: float) -> None:
    """Durations have units; a bare number is in the option's own."""
    assert parse(idleOffsetInterval=text if seconds >= 1 else "1s", latestOffsetWait=text).latest_offset_wait == seconds


@pytest.mark.parametrize(("text", "size"), [("65536", 65536), ("64k", 65536), ("8m", 8 << 20), ("1gb", 1 << 30)])
def test_byte_counts(text: str, size: int) -> None:
    """Byte counts have units."""
    assert parse(bufferBytes=text, bufferBytesPerShard="1k").buffer_bytes == size


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("maxPartitions", "0"),
        ("maxPartitions", "many"),
        ("failOnDataLoss", "maybe"),
        ("recordPublisher", "push"),
        ("latestOffsetWait", "5 parsecs"),
        ("bufferBytes", "8q"),
        ("initialPosition", "YESTERDAY"),
        ("initialPosition", "LATEST 2026-01-01"),
        ("initialPosition", '{"latest": 1}'),
        ("endingTimestamp", "noon"),
        ("streamName", ","),
        ("streamArn", "arn:aws:s3:::bucket"),
        ("subscribeToShardBackoffExponent", "0.5"),
        ("subscribeToShardBackoffExponent", "nan"),
        ("endingTimestamp", "inf"),
        ("initialPosition", "AT_TIMESTAMP 1e20"),
        ("addedStreamPosition", "AT_TIMESTAMP"),
    ],
)
def test_a_value_that_is_none_names_the_option(option: str, value: str) -> None:
    """A wrong value is answered with the canonical name and the rule."""
    with pytest.raises(InvalidOptionError, match=option):
        parse_keys({"streamName": "s", option: value} if option != "streamName" else {option: value})


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"recordPublisher": "efo", "efoRegistration": "eager"}, "efoConsumerName"),
        ({"recordPublisher": "efo", "efoRegistration": "none"}, "efoConsumerArn.flights"),
        ({"awsAccessKeyId": "key"}, "awsSecretAccessKey"),
        ({"awsSecretAccessKey": "secret"}, "awsAccessKeyId"),
        ({"awsSessionToken": "token"}, "awsAccessKeyId"),
        ({"serviceCertificateFile": "a.pem"}, "servicePrivateKeyFile"),
        ({"servicePrivateKeyFile": "a.key"}, "serviceCertificateFile"),
        ({"roleExternalId": "x"}, "roleArn"),
        ({"initialPosition": "AT_TIMESTAMP"}, "initialTimestamp"),
    ],
)
def test_what_an_option_needs_is_named(options: dict[str, str], missing: str) -> None:
    """An option that needs another says which."""
    with pytest.raises(MissingOptionError) as caught:
        parse(**options)
    assert caught.value.option == missing


@pytest.mark.parametrize(
    "options",
    [
        {"kinesis.streamName": "other"},
        {"streamArn": "arn:aws:kinesis:eu-west-1:123456789012:stream/other"},
        {"initialPosition": "LATEST", "initialTimestamp": "2026-01-01"},
        {"awsProfile": "p", "awsAccessKeyId": "a", "awsSecretAccessKey": "b"},
        {"serviceToken": "t", "serviceTokenFile": "/run/secrets/token"},
        {"recordPublisher": "efo", "efoConsumerName": "c", "efoConsumerArn.flights": "arn"},
        {"randomPartitionKey": "true", "partitionKeyColumn": "id"},
        {"bufferBytes": "1m"},
    ],
)
def test_options_that_cannot_both_hold_are_refused(options: dict[str, str]) -> None:
    """A contradiction is an error, never a silent choice."""
    with pytest.raises(ContradictoryOptionsError):
        parse(**options)


def test_the_stream_is_required() -> None:
    """Without a stream there is nothing to do."""
    with pytest.raises(MissingOptionError, match="streamName"):
        parse_keys({})


def test_an_arn_gives_name_and_region() -> None:
    """A stream's ARN says all that is needed to find it."""
    options = parse_keys({"streamArn": "arn:aws:kinesis:eu-west-1:123456789012:stream/flights"})
    assert (options.stream_name, options.region) == (("flights",), "eu-west-1")


def test_consumer_arns_find_their_stream_although_keys_come_in_lower_case() -> None:
    """Stream names keep their letter case, which Spark takes from option keys."""
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/FlightS/consumer/c:1700000000"
    options = parse_keys(
        {
            "streamname": "FlightS",
            "recordpublisher": "efo",
            "eforegistration": "none",
            "efoconsumerarn.flights": arn,
        }
    )
    assert options.efo_consumer_arn == {"FlightS": arn}


def test_a_consumer_of_another_stream_is_refused() -> None:
    """Kinesis is asked for a consumer and a shard: it would give the other stream's records."""
    efo = {"recordPublisher": "efo", "efoRegistration": "none"}
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/{}/consumer/c:1700000000"
    assert parse(**efo, **{"efoConsumerArn.flights": arn.format("flights")}).efo_consumer_arn
    with pytest.raises(InvalidOptionError, match="a consumer of stream flights") as caught:
        parse(**efo, **{"efoConsumerArn.flights": arn.format("delays")})
    assert caught.value.option == "efoConsumerArn.flights"
    with pytest.raises(InvalidOptionError, match="the ARN of a consumer"):
        parse(**efo, **{"efoConsumerArn.flights": "arn:x"})
    with pytest.raises(ContradictoryOptionsError, match="that of consumer c"):
        parse(**efo, **{"efoConsumerArn.flights": arn.format("flights"), "flink.stream.efo.consumername": "d"})
    with pytest.raises(InvalidOptionError, match="'consumerName' is 'a/b'"):
        parse(recordPublisher="efo", consumerName="a/b")


def test_a_consumer_of_another_account_needs_its_streams_arn() -> None:
    """A consumer's ARN names its stream, which is compared with the one that is read as far as that is known."""
    stream = "arn:aws:kinesis:{}:{}:stream/flights"
    own, others = (stream.format("eu-west-1", account) for account in ("111111111111", "222222222222"))
    efo = {"recordPublisher": "efo", "efoRegistration": "none"}

    def read(consumer_of: str, **options: str) -> KinesisOptions:
        return parse_keys({**efo, "efoConsumerArn.flights": f"{consumer_of}/consumer/c:1700000000", **options})

    assert read(others, streamArn=others).stream_arn == (others,)
    assert read(others, streamName="flights").region is None
    with pytest.raises(ContradictoryOptionsError, match=f"of {others}: give that as streamArn") as caught:
        read(others, streamArn=own)
    assert caught.value.options == ("streamArn", "efoConsumerArn.flights")
    elsewhere = stream.format("us-east-1", "111111111111")
    for place in ({"region": "eu-west-1"}, {"endpointUrl": "https://kinesis.eu-west-1.amazonaws.com"}):
        with pytest.raises(ContradictoryOptionsError, match="the consumer is in us-east-1, not in eu-west-1") as caught:
            read(elsewhere, streamName="flights", **place)
        assert caught.value.options == ("region", "efoConsumerArn.flights")


SERVICE = {"serviceToken": "SVC" * 11, "readerEndpoint": "reader:1"}


def test_secrets_are_not_in_the_repr() -> None:
    """Whatever prints the options shows no secret."""
    text = repr(parse(awsAccessKeyId="key", awsSecretAccessKey="SECRET", awsSessionToken="TOKEN", **SERVICE))
    assert not any(secret in text for secret in ("SECRET", "TOKEN", "SVC"))


def test_secret_options_do_not_show_their_value_in_errors() -> None:
    """A wrong value of a secret is not repeated."""
    secrets = [spec for spec in OPTIONS if spec.secret]
    assert {spec.name for spec in secrets} == {
        "awsSecretAccessKey",
        "awsSessionToken",
        "proxyUrl",
        "roleExternalId",
        "serviceToken",
    }
    for short in ("", "t" * 31):
        with pytest.raises(InvalidOptionError) as caught:
            parse(**(SERVICE | {"serviceToken": short}))
        assert "'***'" in str(caught.value)
    assert "at least 32 characters: make one with `openssl rand -hex 32`" in str(caught.value)


def test_the_environment_gives_the_trace() -> None:
    """Processes that Spark starts find the trace in TRACEPARENT, unless the option says another."""
    environ = {"TRACEPARENT": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
    assert KinesisOptions.parse({"streamName": "s"}, environ=environ).traceparent == environ["TRACEPARENT"]
    given = "00-" + "3" * 32 + "-" + "4" * 16 + "-01"
    assert KinesisOptions.parse({"streamName": "s", "traceparent": given}, environ=environ).traceparent == given


def test_the_documents_hold_what_is_generated() -> None:
    """The tables of options and migration are current."""
    folders = (Path(__file__).parents[2] / "docs", Path(__file__).parents[4] / "docs" / "pages")
    documents = [path.read_text() for folder in folders for path in folder.rglob("*.md")]
    assert [fill(one) for one in documents] == documents, "run python -m penstock.spark_plugin._options.docs FOLDER"
    assert all(any(text in one for one in documents) for _, text in generated())


@pytest.mark.parametrize(
    "endpoint", ["reader:50051", "[::1]:50051", "unix:/run/reader", "dns:///reader.jobs.svc:50051"]
)
def test_services_are_where_grpc_finds_them(endpoint: str) -> None:
    """Names that gRPC resolves, such as all pods behind a name, are as good as hosts."""
    assert KinesisOptions.parse({"streamName": "s", "readerEndpoint": endpoint}).reader_endpoint == (endpoint,)
