"""Options as users write them: names, values, and what each declaration asks for."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from option_texts import given as option_given
from option_texts import names as option_names
from option_texts import text_of
from pyspark.sql.types import BinaryType, StringType, StructType

from penstock.async_sink import AsyncSinkConfig
from penstock.spark_plugin import FirehoseDataSource, KinesisDataSource, KinesisOptions
from penstock.spark_plugin._options.docs import documentation, fill, generated
from penstock.spark_plugin._options.foreign import foreign_options
from penstock.spark_plugin._options.parsing import check_use
from penstock.spark_plugin._options.spec import OptionSpec, OptionType, Use
from penstock.spark_plugin._options.table import BY_NAME, OPTIONS
from penstock.spark_plugin._reading.session.configs import reader_config
from penstock.spark_plugin._writing.sink_task import sink_config
from penstock.spark_plugin.errors import OptionError

NUMBERS = (OptionType.INTEGER, OptionType.SECONDS, OptionType.MILLISECONDS, OptionType.BYTES)
EFO = {"recordPublisher": "efo", "efoConsumerName": "c"}
ROWS = StructType().add("data", BinaryType()).add("partitionKey", StringType())


def parse(**options: str) -> KinesisOptions:
    stream = {} if "streamname" in options else {"streamName": "flights"}
    return KinesisOptions.parse(stream | options, environ={})


def names(spec: OptionSpec) -> tuple[str, ...]:
    """In lower case, as Spark hands options over."""
    return tuple(name.lower() for name in option_names(spec))


_USES = {"read": Use.READ, "readStream": Use.READ_STREAM, "write": Use.WRITE, "load": Use.ANY_READ}


def golden() -> list[tuple[str, str]]:
    """Pairs of lines: where the options are given, and which; indented, the error."""
    lines = (Path(__file__).parents[1] / "data" / "nasty_options.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    return list(zip(lines[::2], lines[1::2], strict=True))


@pytest.mark.parametrize(("written", "answer"), golden())
def test_error_has_name_value_and_cure(written: str, answer: str) -> None:
    """Word by word; the answer has the name as it is documented."""
    use, _, text = written.partition(" ")
    options = {name.lower(): value for name, value in json.loads(text).items()}

    def run() -> None:
        KinesisOptions.parse(options, environ={}, stream_required=use != "write")
        check_use(options, _USES[use])

    with pytest.raises(OptionError) as caught:
        run()
    assert f"    {caught.value}" == answer


@pytest.mark.parametrize("spec", OPTIONS, ids=lambda spec: spec.name)
def test_declaration_is_complete(spec: OptionSpec) -> None:
    """It has words, its default is what the field holds, and the options that it names exist."""
    assert documentation()[spec.field]
    assert getattr(KinesisOptions(stream_name=("s",)), spec.field) == spec.value or spec.name == "streamName"
    named = [one.partition("=")[0] for one in (*spec.not_with, spec.needs, spec.at_most) if one]
    assert set(named) <= BY_NAME.keys()


@pytest.mark.parametrize("spec", [one for one in OPTIONS if one.type in NUMBERS], ids=lambda spec: spec.name)
def test_a_number_out_of_range_is_refused_by_each_name(spec: OptionSpec) -> None:
    """A text that is not a number is refused, too."""
    unit = "ms" if spec.type is OptionType.MILLISECONDS else ""
    wrong = ["many"]
    if spec.minimum:
        wrong.append(f"{int(spec.minimum) - 1 if spec.minimum >= 1 else 0}{unit}")
    if spec.maximum is not None:
        wrong.append(f"{spec.maximum + 1:.0f}{unit}")
    for text in wrong:
        for name in names(spec):
            with pytest.raises(OptionError) as caught:
                parse(**{name: text})
            assert caught.value.code == "INVALID_OPTION"
            assert (caught.value.option.lower(), caught.value.facts["value"]) == (name, text)


@pytest.mark.parametrize(
    "spec",
    [one for one in OPTIONS if one.choices or one.pattern or one.type in (OptionType.TIME, OptionType.POSITION)],
    ids=lambda spec: spec.name,
)
def test_invalid_text_is_refused_by_each_name(spec: OptionSpec) -> None:
    """The value of a secret is not repeated."""
    for name in names(spec):
        with pytest.raises(OptionError) as caught:
            parse(**{name: "" if spec.name == "recordDelimiter" else "no / value"})
        assert caught.value.code == "INVALID_OPTION"
        assert caught.value.option.lower() == name
        assert not spec.secret or caught.value.facts["value"] == "***"


@pytest.mark.parametrize("spec", [one for one in OPTIONS if one.needs], ids=lambda spec: spec.name)
def test_missing_needed_option_is_named(spec: OptionSpec) -> None:
    other, _, value = spec.needs.partition("=")
    needed = {key: text for key, text in option_given(spec)[1].items() if key == "valueFormat" != other}
    with pytest.raises(OptionError) as caught:
        parse(**needed, **{f"{spec.name}.flights" if spec.prefix else spec.name: text_of(spec)})
    facts = caught.value.facts
    expected = ("CONTRADICTORY_OPTIONS", other) if value else ("MISSING_OPTION", other)
    assert (caught.value.code, facts["other" if value else "option"]) == expected


@pytest.mark.parametrize("spec", [one for one in OPTIONS if one.at_most], ids=lambda spec: spec.name)
def test_a_number_above_the_one_that_bounds_it_contradicts_it(spec: OptionSpec) -> None:
    """By the names that were written; an option that was left out has its own."""
    other = BY_NAME[spec.at_most]
    unit = "m" if spec.type is OptionType.BYTES else ""
    publisher = EFO if spec.needs == "recordPublisher=efo" else {}
    for name in names(spec):
        with pytest.raises(OptionError) as caught:
            parse(**publisher, **{name: f"300{unit}", names(other)[-1]: f"299{unit}"})
        assert caught.value.code == "CONTRADICTORY_OPTIONS"
        assert [str(caught.value.facts[one]).lower() for one in ("option", "other")] == [name, names(other)[-1]]


@settings(max_examples=400)
@given(
    st.dictionaries(
        st.sampled_from([one.name for one in OPTIONS if one.type in NUMBERS]),
        st.one_of(
            st.sampled_from(["0", "1", "1e309", "-1", f"{2**31 - 1}", f"{2**63}"]), st.integers(0, 5000).map(str)
        ),
        max_size=6,
    )
)
def test_what_is_accepted_can_be_used(numbers: dict[str, str]) -> None:
    """Numbers that are accepted make valid settings of the packages below; no call fails because of them."""
    try:
        options = parse(**EFO, **numbers)
    except OptionError:
        return
    reader_config(options)
    if not {"maxBatchSizeInBytes", "maxRecordSizeInBytes"} & numbers.keys():
        sink_config(options)


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
    except OptionError as error:
        if error.code == "UNKNOWN_OPTION":
            pytest.fail(f"{written} is not found")


def test_an_unknown_option_names_the_nearest_one() -> None:
    """A typing error is answered with the option that was meant."""
    with pytest.raises(OptionError, match=r"UNKNOWN_OPTION.*recordPublisher") as caught:
        parse(recordPublsher="efo")
    assert caught.value.facts["nearest"] == "recordPublisher"


def test_unknown_option_without_a_similar_name_has_no_suggestion() -> None:
    """A name that resembles no option is not answered with a guess."""
    with pytest.raises(OptionError) as caught:
        parse(zzzzqqqq="1")
    assert caught.value.code == "UNKNOWN_OPTION"
    assert caught.value.facts["nearest"] is None


def test_keys_of_spark_are_accepted() -> None:
    """Spark adds the checkpoint's location to a stream writer's options."""
    assert parse(checkpointlocation="/tmp/x").stream_name == ("flights",)


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


def test_consumer_arns_find_their_stream_although_keys_come_in_lower_case() -> None:
    """Stream names keep their letter case, which Spark takes from option keys."""
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/FlightS/consumer/c:1700000000"
    options = parse(
        **{"streamname": "FlightS", "recordpublisher": "efo", "eforegistration": "none", "efoconsumerarn.flights": arn}
    )
    assert options.efo_consumer_arn == {"FlightS": arn}


def test_a_consumer_of_another_account_needs_its_streams_arn() -> None:
    """A consumer's ARN names its stream, account and region, which must be those that are read."""
    stream = "arn:aws:kinesis:{}:{}:stream/flights"
    own, others = (stream.format("eu-west-1", account) for account in ("111111111111", "222222222222"))
    efo = {"recordPublisher": "efo", "efoRegistration": "none"}

    def read(consumer_of: str, **options: str) -> KinesisOptions:
        return KinesisOptions.parse(
            {**efo, "efoConsumerArn.flights": f"{consumer_of}/consumer/c:1700000000", **options}
        )

    assert read(others, streamArn=others).stream_arn == (others,)
    assert read(others, streamName="flights").region is None
    with pytest.raises(OptionError) as caught:
        read(others, streamArn=own)
    assert (caught.value.code, caught.value.option) == ("CONTRADICTORY_OPTIONS", "streamArn")
    elsewhere = stream.format("us-east-1", "111111111111")
    for place in ({"region": "eu-west-1"}, {"endpointUrl": "https://kinesis.eu-west-1.amazonaws.com"}):
        with pytest.raises(OptionError) as caught:
            read(elsewhere, streamName="flights", **place)
        assert (caught.value.code, caught.value.option) == ("CONTRADICTORY_OPTIONS", "region")


SERVICE = {"serviceToken": "SVC" * 11, "readerEndpoint": "reader:1"}


def test_secrets_are_not_in_the_repr() -> None:
    """Whatever prints the options shows no secret."""
    text = repr(parse(awsAccessKeyId="key", awsSecretAccessKey="SECRET", awsSessionToken="TOKEN", **SERVICE))
    assert not any(secret in text for secret in ("SECRET", "TOKEN", "SVC"))


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


@pytest.mark.parametrize(
    ("options", "option", "value", "rule"),
    [
        ({"sink.batch.max-size": "600"}, "sink.batch.max-size", 600, "at most 500"),
        ({"maxBatchSizeInBytes": "20m"}, "maxBatchSizeInBytes", 20 << 20, "at most 10485760"),
        ({"maxBatchSizeInBytes": "200m"}, "maxBatchSizeInBytes", 200 << 20, "at most 134217728"),
        (
            {"aggregation": "true", "sink.requests.max-buffered": "1000"},
            "sink.requests.max-buffered",
            1000,
            "more than maxBatchSize, 10000",
        ),
        (
            {"aggregation": "true", "maxRecordSizeInBytes": "5m"},
            "maxBatchSizeInBytes",
            4_718_592,
            "at least maxRecordSizeInBytes, 5242880",
        ),
    ],
)
def test_limit_of_the_destination_names_its_option(options: dict[str, str], option: str, value: int, rule: str) -> None:
    """As the write is planned."""
    source = KinesisDataSource({"streamName": "s", "region": "us-east-1", **options})
    with pytest.raises(OptionError) as caught:
        source.writer(ROWS, overwrite=False)
    assert caught.value.code == "INVALID_OPTION"
    assert (caught.value.option, caught.value.facts["value"], caught.value.facts["rule"]) == (option, value, rule)


@pytest.mark.parametrize("limit", ["maxBatchSize", "maxBufferedRequests", "maxBatchSizeInBytes", "sink.batch.max-size"])
def test_default_value_that_is_written_counts_as_given(limit: str) -> None:
    """What is left out suits the destination; what is written holds, whatever its value."""
    size = "5m" if limit.endswith("Bytes") else "10000" if limit.endswith("Requests") else "500"
    many = {"maxBatchSize": "9000"} if limit == "maxBufferedRequests" else {}
    left_out = sink_config(parse(aggregation="true"))
    given_options = parse(aggregation="true", **{limit: size}, **many)
    name = "max_batch_size" if "." in limit else re.sub("(?=[A-Z])", "_", limit).lower()
    assert getattr(sink_config(given_options), name) == getattr(given_options, name) != getattr(left_out, name)


def test_a_request_is_sent_again_once_before_the_task_stalls() -> None:
    """A service that answers within half of `stallTimeout` gets each request once. A gateway's batch waits its turn."""
    assert sink_config(parse(stallTimeout="150s")).request_timeout == timedelta(seconds=75)
    behind_gateway = sink_config(parse(stallTimeout="150s", sinkEndpoint="gateway:50051"))
    assert behind_gateway.request_timeout == AsyncSinkConfig().request_timeout


def test_both_sizes_of_aggregates_may_be_those_of_a_request() -> None:
    """A record that fills a request of 5 MiB, by options that name both."""
    schema = StructType().add("data", BinaryType()).add("partitionKey", StringType())
    sizes = {"maxRecordSizeInBytes": "5m", "maxBatchSizeInBytes": "5m"}
    source = KinesisDataSource({"streamName": "s", "region": "us-east-1", "aggregation": "true", **sizes})
    source.writer(schema, overwrite=False)


@pytest.mark.parametrize(("limit", "text"), [("maxBatchSizeInBytes", "5m"), ("maxRecordSizeInBytes", "1m")])
def test_a_limit_that_firehose_does_not_take_is_refused_whatever_the_default(limit: str, text: str) -> None:
    """A default of Kinesis counts as given where it is written."""
    source = FirehoseDataSource({"deliveryStreamName": "d", "region": "us-east-1", limit: text})
    with pytest.raises(OptionError) as caught:
        source.writer(StructType().add("data", BinaryType()), overwrite=False)
    assert caught.value.code == "INVALID_OPTION"
    assert caught.value.option == limit


@pytest.mark.parametrize("call", ["subscribeToShard", "getRecords"])
def test_unlimited_attempts_need_pauses(call: str) -> None:
    """Thousands of calls a second would use up the account's limits; a number of attempts bounds them."""
    none = {f"{call}BackoffBase": "0", f"{call}BackoffMax": "0"} | EFO
    with pytest.raises(OptionError) as caught:
        parse(**none)
    assert caught.value.code == "CONTRADICTORY_OPTIONS"
    assert (caught.value.option, caught.value.facts["other"]) == (f"{call}BackoffMax", f"{call}MaxRetries")
    parse(**none, **{f"{call}MaxRetries": "3"})
    parse(**none | {f"{call}BackoffMax": "10"})
