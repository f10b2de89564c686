"""The complete examples of other connectors' documents: what each line becomes, and that the whole reads."""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from documented_examples import AWS, DATABRICKS, EXAMPLES, FLINK, Example, Ours, Refused, Told, Way
from patience import PATIENCE_SECONDS
from pyspark.sql.types import StringType, StructField, StructType
from reading_driver import rows_of

from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin import FirehoseDataSource, KinesisDataSource, KinesisOptions
from penstock.spark_plugin._options.foreign import _warned, translate
from penstock.spark_plugin._options.parsing import find_option
from penstock.spark_plugin._options.spec import field_name
from penstock.spark_plugin._reading.stream.offsets import default_limit
from penstock.spark_plugin._reading.stream.plain_reader import RefusedStreamReader
from penstock.spark_plugin._reading.stream.reader import KinesisStreamReader
from penstock.spark_plugin._schema import read_schema
from penstock.spark_plugin._write_only import write_only_options
from penstock.spark_plugin.errors import OptionError

PLACES = {
    "stream": "s",
    "arn": "arn:aws:kinesis:us-east-1:000000000000:stream/s",
    "endpoint": "http://127.0.0.1:4567",
    "checkpoint": "/checkpoint",
}
DATA = StructType([StructField("data", StringType()), StructField("partitionKey", StringType())])
READS = [one for one in EXAMPLES if one.way is Way.READ_STREAM]
EVERYTHING = default_limit(None, None)


def hand_over(way: Way, options: dict[str, str]) -> None:
    """As Spark hands options over: with keys in lower case, to the source and its reader or writer."""
    lower = {name.lower(): text for name, text in options.items()}
    if way is Way.FIREHOSE:
        FirehoseDataSource(lower).writer(StructType(DATA.fields[:1]), overwrite=False)
    elif way is Way.WRITE:
        KinesisDataSource(lower).writer(DATA, overwrite=False)
    else:
        reader = KinesisDataSource(lower).streamReader(read_schema(KinesisOptions.parse(lower)))
        assert not isinstance(reader, RefusedStreamReader), reader.initialOffset()


def parse(way: Way, options: dict[str, str]) -> KinesisOptions:
    return write_only_options("firehose", options) if way is Way.FIREHOSE else KinesisOptions.parse(options, environ={})


@pytest.mark.parametrize("one", EXAMPLES, ids=lambda one: f"{one.connector.name} {one.name}".replace(" ", "-"))
def test_each_line_becomes_what_is_said_of_it(one: Example, caplog: pytest.LogCaptureFixture) -> None:
    """Each line sets these options and no others, is a warning with its reason, or is an error."""
    options = one.options(**PLACES)
    given = {name.lower(): text for name, text in options.items()}
    expected: dict[str, object] = {}
    warnings = []
    for name, text, became in one.lines:
        if isinstance(became, Refused):
            with pytest.raises(OptionError, match=became.words) as caught:
                hand_over(one.way, {**options, name: text})
            assert f"'{name}'".lower() in str(caught.value).lower()
        elif isinstance(became, Ours):
            meant = [name] if find_option(name) else list(translate(name, text, given) or ())
            names = {field_name("streamName" if it == "deliveryStreamName" else it) for it in meant}
            assert names, name
            assert names <= set(became.fields), name
            expected |= became.fields
        elif isinstance(became, Told):
            warnings.append((f"'{name}' of the {one.connector}", became.why))
    if one.added:
        expected["value_format"] = one.added["valueFormat"]

    _warned.clear()
    with caplog.at_level(logging.WARNING, "penstock.spark_plugin"):
        parsed = parse(one.way, options)
    assert parsed == KinesisOptions(**expected)  # type: ignore[arg-type]  # fields by name
    assert len(caplog.messages) == len(warnings)
    for message, (name, why) in zip(caplog.messages, warnings, strict=True):
        assert name in message
        assert why in message
    hand_over(one.way, options)


def test_examples_of_all_three_connectors_are_here() -> None:
    """Reads of each, with polling and enhanced fan-out, and writes where the connector has a sink."""
    for examples in (FLINK, DATABRICKS, AWS):
        publishers = {parse(one.way, one.options(**PLACES)).record_publisher for one in examples if one in READS}
        assert publishers == {"efo", "polling"}
    assert {one.way for one in FLINK} == set(Way)
    assert Way.WRITE in {one.way for one in AWS}


@pytest.fixture(scope="module")
def sts() -> Iterator[str]:
    """The URL of an STS."""
    with running_emulator(companions=("sts",)) as running:
        yield running.endpoints["sts"]


@pytest.fixture
def environment(kinesis: RunningEmulator, sts: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a process on AWS has: credentials and a region; and where the services are instead."""
    for name, text in {
        "AWS_ENDPOINT_URL_KINESIS": kinesis.endpoint_url,
        "AWS_ENDPOINT_URL_STS": sts,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "XDG_STATE_HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, text)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("one", READS, ids=lambda one: f"{one.connector.name} {one.name}".replace(" ", "-"))
def test_each_example_of_reading_reads(
    one: Example, kinesis: RunningEmulator, make_stream: Callable[[int], Any], until: Callable[..., None]
) -> None:
    """With nothing added: from where it says that it begins, each record once, with the consumer that it names."""
    stream = make_stream(1)
    stream.put(1)
    (before,) = stream.put_keys
    arn = stream.client.describe_stream_summary(StreamName=stream.name)["StreamDescriptionSummary"]["StreamARN"]
    options = KinesisOptions.parse(one.options(stream=stream.name, arn=arn, endpoint=kinesis.endpoint_url))
    begins_old = options.initial_position is not None and options.initial_position.type == "TRIM_HORIZON"
    consumers = [name for name in [options.efo_consumer_name] if name]
    is_registered = "registeredConsumerId" in {name for name, _, _ in one.lines}
    if is_registered:
        stream.register(consumers[0])
    if not begins_old:
        # Kinesis tells its time in whole seconds, and arrival times are approximate by one.
        time.sleep(2.1)
    reader = KinesisStreamReader(options)
    try:
        end = reader.initialOffset()
        stream.put(3)
        expected = [key for key in stream.put_keys if begins_old or key != before]
        found: list[tuple[str, str]] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < len(expected) and time.monotonic() < deadline:
            start, end = end, reader.latestOffset(end, EVERYTHING)
            found += [(shard, number) for _, shard, number in rows_of(reader, start, end)]
        assert found == expected
        assert stream.consumers() == consumers
    finally:
        reader.stop()
    left = consumers if is_registered else []
    until(lambda: stream.consumers() == left, "the consumer is not what it was before")
