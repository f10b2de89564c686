"""Options of other connectors, as those document them."""

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._options.foreign import CONVERTERS, Connector, _warned, foreign_options
from penstock.spark_plugin._options.parsing import check_use, find_option
from penstock.spark_plugin._options.spec import Use
from penstock.spark_plugin.errors import OptionError

DOCUMENTED = Path(__file__).parents[1] / "documented_options"
"""The names of the options that each connector documents or reads and that are accepted here, one a line."""
POSITION = datetime(2020, 6, 25, 17, 23, 45, tzinfo=UTC)


def parse(options: dict[str, str]) -> KinesisOptions:
    return KinesisOptions.parse({"streamName": "flights", **options}, environ={})


@pytest.mark.parametrize("connector", Connector)
def test_documented_options_are_accepted(connector: Connector) -> None:
    """Each name means an option, or is not needed."""
    names = (DOCUMENTED / f"{connector.name.lower()}.txt").read_text().split()
    assert len(names) > 20
    for name in names:
        try:
            parse({"streamName": "flights", name.replace("<stream>", "flights"): "an impossible value"})
        except OptionError as error:
            if error.code == "UNKNOWN_OPTION":
                pytest.fail(f"{name} is not known")
        except ValueError:
            pass


def test_every_declaration_can_be_followed() -> None:
    """The option that a name means exists; names that are not needed have a reason."""
    for one in foreign_options():
        assert not one.option or find_option(one.option) or find_option(f"{one.option}.s"), one.name
        assert one.option or not one.note or len(one.note.split()) > 3, one.name
        assert one.convert in ("", *CONVERTERS), one.name
    assert {one.convert for one in foreign_options()} >= CONVERTERS.keys()


def test_option_that_is_not_needed_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """The warning says why; harmless values are not worth one."""
    _warned.clear()
    options = {"kinesis.checkNewRecordThreads": "8", "shardsPerTask": "5", "connector": "kinesis"}
    with caplog.at_level(logging.WARNING, "penstock.spark_plugin"):
        parse(options)
        parse(options)
    assert len(caplog.messages) == 2
    assert "'shardsPerTask' of the Databricks connector is not needed here: shards are grouped" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("serviceCredential", "prod"),
        ("kinesis.credentialProviderClass", "com.example.P"),
        ("aws.credentials.provider.custom.class", "com.example.P"),
        ("flink.watermark.sync.interval", "30000"),
        ("flink.list.shards.backoff.base", "1000"),
        ("flink.stream.registerstreamconsumer.maxretries", "5"),
        ("source.efo.deregister.timeout", "60000"),
        ("flink.shard.getrecords.backoff.expconst", "2"),
        ("sink.producer.rate-limit", "80"),
        ("kinesis.sink.proxyAddress", "10.0.0.1"),
        ("startingOffsets", "earliest"),
        ("kafka.bootstrap.servers", "b"),
    ],
)
def test_unknown_foreign_option_refers_to_the_migration_page(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=r"UNKNOWN_OPTION.*docs/pages/migration/options.md"):
        parse({name.lower(): value})
    assert (Path(__file__).parents[4] / "docs/pages/migration/options.md").is_file()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", "json"),
        ("awsUseInstanceProfile", "false"),
        ("scan.shard.idle.interval", "10000"),
        ("flink.shard.adaptivereads", "false"),
        ("sink.producer.fail-if-throttled", "true"),
        ("aws.trust.all.certificates", "true"),
        ("sink.producer.verify-certificate", "false"),
    ],
)
def test_value_that_cannot_be_ignored_is_refused(name: str, value: str) -> None:
    """The error names the option as it is documented, though Spark hands it over in lower case."""
    with pytest.raises(OptionError, match=r"docs/pages/migration/options.md") as caught:
        parse({name.lower(): value})
    assert caught.value.code == "INVALID_OPTION"
    assert caught.value.option == name


def test_harmless_values_are_accepted() -> None:
    """A value that says what is so anyway is not an error."""
    parse({"aws.trust.all.certificates": "false", "sink.producer.verify-certificate": "true", "format": "raw"})


def test_values_are_translated() -> None:
    """Modes, units and several names for one thing."""
    options = parse(
        {
            "source.reader.type": "EFO",
            "source.efo.lifecycle": "SELF_MANAGED",
            "source.efo.consumer.name": "me",
            "scan.shard.discovery.intervalmillis": "5000",
            "minFetchPeriod": "400ms",
            "kinesis.getRecords.numberOfRecordsPerFetch": "500",
            "scan.shard.adaptivereads": "true",
        }
    )
    assert (options.record_publisher, options.efo_registration, options.efo_consumer_name) == ("efo", "lazy", "me")
    assert (options.shard_discovery_interval, options.get_records_interval) == (5.0, 400.0)
    assert options.get_records_max_records == 500
    assert parse({"kinesis.getRecords.fetchIntervalMs": "50"}).get_records_interval == 200
    sink = parse(
        {"sink.partitioner": "random", "kinesis.sink.recordTtl": "30000", "sink.producer.collection-max-size": "9"}
    )
    assert (sink.random_partition_key, sink.time_to_live, sink.max_batch_size) == (True, 30.0, 9)


@pytest.mark.parametrize(
    ("name", "number", "field", "expected"),
    [
        ("source.efo.subscription.timeout", "60000", "subscribe_to_shard_timeout", 60.0),
        ("source.shard.discovery.interval", "60000", "shard_discovery_interval", 60.0),
        ("flink.shard.subscribetoshard.timeout", "60", "subscribe_to_shard_timeout", 60.0),
        ("flink.dynamodbstreams.backoff.mindelayduration", "500", "get_records_backoff_base", 500.0),
        ("flink.dynamodbstreams.getrecords.nonempty.mindelay", "500", "get_records_interval", 500.0),
    ],
)
def test_number_without_a_unit_has_the_unit_of_flink(name: str, number: str, field: str, expected: float) -> None:
    """Milliseconds for a duration of its newer sources, seconds for a timeout of its older consumer."""
    efo = {"source.reader.type": "EFO", "source.efo.consumer.name": "me"} if field.endswith("timeout") else {}
    assert getattr(parse({name: number, **efo}), field) == expected
    if efo:
        assert getattr(parse({name: "30 s", **efo}), field) == 30.0


@pytest.mark.parametrize(
    ("options", "retries", "base", "longest"),
    [
        ({"retry-strategy.delay.min": "500 ms", "retry-strategy.delay.max": "4s"}, None, 500, 4000),
        ({"kinesis.client.numRetries": "5", "kinesis.client.retryIntervalMs": "800"}, 5, 800, 1000),
        ({"kinesis.client.retryIntervalMs": "10000", "kinesis.client.maxRetryIntervalMs": "20000"}, None, 1e4, 2e4),
        ({"kinesis.clientNumRetries": "0", "kinesis.clientRetryIntervalsMs": "400"}, 0, 400, 1000),
    ],
)
def test_retries_of_a_client_are_retries_of_reads(
    options: dict[str, str], retries: int | None, base: float, longest: float
) -> None:
    found = parse({name.lower(): text for name, text in options.items()})
    told = [getattr(found, f"get_records_{what}") for what in ("max_retries", "backoff_base", "backoff_max")]
    assert told == [retries, base, longest]


def test_registered_consumers_of_databricks_are_used_and_left() -> None:
    """By their ARNs, which name their streams, or by name."""
    arn = "arn:aws:kinesis:us-east-1:123456789012:stream/flights/consumer/c:1700000000"
    efo = {"consumerMode": "efo", "registeredConsumerId": arn, "registeredConsumerIdType": "ARN"}
    options = parse(efo)
    assert (options.efo_registration, options.efo_consumer_arn) == ("none", {"flights": arn})
    named = parse({"consumerMode": "efo", "registeredConsumerId": "c"})
    assert (named.efo_registration, named.efo_consumer_name) == ("lazy", "c")
    prefixed = parse({"consumerMode": "efo", "consumerName": "c", "consumerNamePrefix": "databricks_"})
    assert prefixed.efo_consumer_name == "databricks_c"


@pytest.mark.parametrize(
    "options",
    [
        {"initialPosition": '{"AT_TIMESTAMP": "2020-06-25T10:23:45-07:00"}'},
        {"kinesis.startingPosition": "AT_TIMESTAMP 2020-06-25T17:23:45Z"},
        {"kinesis.startingPosition": "at_timestamp 2020-06-25T10:23:45-07:00"},
        {"flink.stream.initpos": "AT_TIMESTAMP", "flink.stream.initpos.timestamp": "2020-06-25T10:23:45.000-07:00"},
        {"scan.stream.initpos": "AT_TIMESTAMP", "scan.stream.initpos-timestamp": "1593105825"},
        {"source.init.position": "AT_TIMESTAMP", "source.init.timestamp": "2020-06-25T17:23:45"},
    ],
)
def test_times_of_each_dialect_are_the_same_time(options: dict[str, str]) -> None:
    """Databricks' JSON, the AWS connector's words, Flink's two options."""
    position = parse(options).initial_position
    assert position is not None
    assert position.timestamp == POSITION


@pytest.mark.parametrize("name", ["initialPosition", "kinesis.startingPosition", "scan.stream.initpos"])
def test_earliest_is_the_trim_horizon(name: str) -> None:
    """In any letter case."""
    for word in ("earliest", "EARLIEST", "trim_horizon"):
        position = parse({name: word}).initial_position
        assert position is not None
        assert position.type == "TRIM_HORIZON"


def test_same_value_by_two_names_is_accepted() -> None:
    """The same value twice is fine."""
    assert parse({"initialPosition": "earliest", "STARTINGPOSITION": "TRIM_HORIZON"}).initial_position is not None


@pytest.mark.parametrize(
    ("options", "use", "belongs_to"),
    [
        ({"initialPosition": "LATEST"}, Use.WRITE, "reads"),
        ({"kinesis.consumerType": "GetRecords"}, Use.WRITE, "reads"),
        ({"maxBatchSize": "5"}, Use.ANY_READ, "writes"),
        ({"sink.batch.max-size": "5"}, Use.READ_STREAM, "writes"),
        ({"endingPosition": "LATEST"}, Use.READ_STREAM, "bounded reads"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options: dict[str, str], use: Use, belongs_to: str) -> None:
    """An option of reading on a write, the reverse, and an end on a stream."""
    lower = {name.lower(): value for name, value in options.items()}
    with pytest.raises(OptionError) as caught:
        check_use({"streamname": "s", **lower}, use)
    assert caught.value.code == "MISPLACED_OPTION"
    assert (caught.value.option, caught.value.facts["belongs_to"]) == (next(iter(options)), belongs_to)
    check_use({"streamName": "s", "region": "eu-west-1", "checkpointLocation": "/c"}, use)


REAL_KEY = {"awsAccessKeyId": "AKIAIOSFODNN7EXAMPLE", "awsSecretAccessKey": "secret"}


def test_real_credentials_are_not_used_where_they_can_be_read() -> None:
    """Without TLS on another host they are refused, unless that is allowed; an emulator's are not, nor is loopback."""
    for name, more in (("endpointUrl", {}), ("stsEndpointUrl", {"roleArn": "arn:aws:iam::123456789012:role/r"})):
        with pytest.raises(OptionError, match=r"DANGEROUS_OPTION.*allowInsecureEndpoint") as caught:
            parse({name: "http://kinesis.example.com", **more, **REAL_KEY})
        assert caught.value.option == name
    parse({"endpointUrl": "http://kinesis.example.com", "allowInsecureEndpoint": "true", **REAL_KEY})
    for url in ("http://127.0.0.1:4567", "http://localhost:4567", "https://kinesis.example.com"):
        parse({"endpointUrl": url, **REAL_KEY})
    parse({"endpointUrl": "http://localstack:4566", "awsAccessKeyId": "test", "awsSecretAccessKey": "test"})
    environ = {"AWS_ACCESS_KEY_ID": REAL_KEY["awsAccessKeyId"]}
    for variables in (environ, {}):
        with pytest.raises(OptionError, match="DANGEROUS_OPTION"):
            KinesisOptions.parse({"streamName": "s", "endpointUrl": "http://kinesis.example.com"}, environ=variables)
    for name in ("AWS_ENDPOINT_URL_KINESIS", "AWS_ENDPOINT_URL"):
        variables = environ | {name: "http://kinesis.example.com"}
        with pytest.raises(OptionError, match=r"DANGEROUS_OPTION.*kinesis\.example\.com"):
            KinesisOptions.parse({"streamName": "s"}, environ=variables)
        KinesisOptions.parse({"streamName": "s", "endpointUrl": "https://kinesis.example.com"}, environ=variables)


def test_the_region_is_in_the_url_of_an_endpoint_of_aws() -> None:
    """As the AWS connector infers it; its option for the stream's own region goes first."""
    assert parse({"kinesis.endpointUrl": "https://kinesis.us-east-2.amazonaws.com"}).region == "us-east-2"
    assert parse({"endpointUrl": "https://vpce-1.kinesis.eu-west-1.vpce.amazonaws.com"}).region == "eu-west-1"
    assert parse({"endpointUrl": "https://kinesis.eu-west-1.api.aws"}).region == "eu-west-1"
    assert parse({"endpointUrl": "https://123456789012.data-kinesis.eu-west-1.amazonaws.com"}).region == "eu-west-1"
    assert parse({"endpointUrl": "http://127.0.0.1:1"}).region is None
    assert parse({"kinesis.region": "a-b-1", "kinesis.kinesisRegion": "c-d-2"}).region == "c-d-2"


ROLE = "arn:aws:iam::123456789012:role/second"
FIRST = "arn:aws:iam::123456789012:role/first"


@pytest.mark.parametrize("family", ["aws.credentials.provider.role", "aws.credentials.role"])
def test_call_for_a_role_is_signed_as_configured(family: str) -> None:
    """Or an error that says how to ask for it; nothing else signs it in silence."""
    role = {f"{family}.arn": ROLE, f"{family}.sessionName": "me"}
    for name in ("AUTO", "PROFILE"):
        assert parse({**role, f"{family}.provider": name, "awsProfile": "p"}).role_arn == ROLE
    chain = parse({**role, f"{family}.provider": "ASSUME_ROLE", f"{family}.provider.role.arn": FIRST})
    assert (chain.role_arn, chain.aws_mapping()["roleArn"]) == (f"{FIRST},{ROLE}", f"{FIRST},{ROLE}")
    with_token = {f"{family}.provider.role.arn": FIRST, f"{family}.provider.webIdentityToken.file": "/token"}
    token = parse({**role, f"{family}.provider": "WEB_IDENTITY_TOKEN", **with_token})
    assert (token.role_arn, token.web_identity_token_file) == (f"{FIRST},{ROLE}", "/token")
