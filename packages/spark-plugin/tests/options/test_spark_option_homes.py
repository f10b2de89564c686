"""Every option, with every home of what it is about: its value is there, or it is refused by name."""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

import penstock.spark_plugin as plugin
from penstock.efo_consumer import OpenRequest, ReaderConfig, StreamPositions
from penstock.efo_consumer._remote.messages import open_from_message, open_to_message
from penstock.proto.consumer_registry.v1 import consumer_registry_pb2
from penstock.proto.shard_reader.v1 import shard_reader_pb2
from penstock.registration import Lease, RegistrarConfig
from penstock.registration._remote.messages import acquire_message, acquire_request
from penstock.spark_plugin import KinesisDataSource, KinesisOptions
from penstock.spark_plugin._connections import caller_location
from penstock.spark_plugin._options.checks import check_homes
from penstock.spark_plugin._options.spec import GATEWAY, READER, REGISTRY, OptionSpec, Place, Use, field_name
from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin._options.use import check_use
from penstock.spark_plugin._reading.session import leases as leases_module
from penstock.spark_plugin._reading.session import session as session_module
from penstock.spark_plugin._reading.session.configs import reader_config, registrar_config
from penstock.spark_plugin._reading.stream.plain_reader import RefusedStreamReader
from penstock.spark_plugin._schema import read_schema
from penstock.spark_plugin._writing._sinks import make_sink, sink_config
from penstock.spark_plugin.errors import (
    ContradictoryOptionsError,
    IrrelevantOptionError,
    MisplacedOptionError,
    MissingOptionError,
)

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/s"
OTHER_ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/other"
CONSUMER = f"{ARN}/consumer/c:1700000000"
ROLE = "arn:aws:iam::123456789012:role/r"
EFO = {"recordPublisher": "efo", "efoConsumerName": "app"}
NONE = {"recordPublisher": "efo", "efoRegistration": "none"}
KEYS = {"awsAccessKeyId": "test", "awsSecretAccessKey": "test"}

TEXTS: dict[str, str | tuple[str, dict[str, str]]] = {
    "streamName": "other",
    "deliveryStreamName": "d",
    "tableName": "orders",
    "streamArn": (OTHER_ARN, {"streamName": "other"}),
    "streamNamePattern": ("s.*", {"streamName": ""}),
    "streamDiscoveryInterval": ("1m", {"streamName": "", "streamNamePattern": "s.*"}),
    "region": "eu-west-1",
    "endpointUrl": "http://127.0.0.1:4567",
    "caBundle": "/ca.pem",
    "proxyUrl": "http://127.0.0.1:3128",
    "allowInsecureEndpoint": "true",
    "awsCredentialsProvider": ("profile", {"awsProfile": "p"}),
    "awsAccessKeyId": ("other", KEYS),
    "awsSecretAccessKey": ("other", KEYS),
    "awsSessionToken": ("t", KEYS),
    "awsProfile": "p",
    "credentialsProvider": "a.b:c",
    "roleArn": ROLE,
    "roleSessionName": ("name", {"roleArn": ROLE}),
    "roleExternalId": ("x", {"roleArn": ROLE}),
    "roleCredentialsProvider": ("profile", {"roleArn": ROLE, "awsProfile": "p"}),
    "roleSessionDuration": ("20m", {"roleArn": ROLE}),
    "roleSessionTags": ("a=b", {"roleArn": ROLE}),
    "stsEndpointUrl": ("http://127.0.0.1:1", {"roleArn": ROLE}),
    "webIdentityTokenFile": ("/token", {"roleArn": ROLE}),
    "initialPosition": "TRIM_HORIZON",
    "initialTimestamp": "2026-01-01",
    "initialTimestampFormat": ("yyyy", {"initialTimestamp": "2026"}),
    "endingPosition": "LATEST",
    "boundedUntil": "LATEST",
    "continueFrom": "TRIM_HORIZON",
    "endingTimestamp": "2026-01-01",
    "shardIds": "shardId-000000000000",
    "filterPushDown": "true",
    "addedStreamPosition": "LATEST",
    "recordPublisher": "efo",
    "maxRecordsPerShardPerBatch": "10",
    "minRecordsPerBatch": "10",
    "maxTriggerDelay": ("1m", {"minRecordsPerBatch": "10"}),
    "efoRegistration": ("eager", EFO),
    "efoConsumerName": ("other-app", EFO),
    "efoConsumerNamePrefix": ("p-", EFO),
    "efoConsumerArn": (f"{ARN}/consumer/other:1", {**NONE, "efoConsumerArn.s": CONSUMER}),
    "subscribeTransport": ("http1", EFO),
    "subscribeToShardTimeout": ("7", EFO),
    "columns": "aws",
    "includeEncryptionType": "true",
    "failOnDataLoss": "false",
    "deaggregate": "false",
    "adaptiveReads": "false",
    "getRecordsMaxRecords": "500",
    "getRecordsInterval": "2s",
    "shardDiscoveryInterval": "3s",
    "retryPatience": "3m",
    "bufferBytes": "256m",
    "bufferBytesPerShard": "4m",
    "spillBytes": "1g",
    "spillFolder": ("/spill", {"spillBytes": "1g"}),
    "latestOffsetWait": "2s",
    "idleOffsetInterval": "7m",
    "readerEndpoint": "reader:1",
    "registryEndpoint": ("registry:1", EFO),
    "sinkEndpoint": "sink:1",
    "executorReaders": "false",
    "readerHost": "driver",
    "readerBindAddress": "0.0.0.0",
    "registryStore": ("/store", EFO),
    "serviceToken": "t" * 32,
    "serviceTokenFile": "/t",
    "serviceCaFile": "/ca",
    "serviceCertificateFile": ("/c", {"servicePrivateKeyFile": "/k"}),
    "servicePrivateKeyFile": ("/k", {"serviceCertificateFile": "/c"}),
    "jobId": "nightly",
    "traceparent": f"00-{'1' * 32}-{'2' * 16}-01",
    "partitionKeyColumn": "id",
    "randomPartitionKey": "true",
    "fixedPartitionKey": "k",
    "valueFormat": "json",
    "valueColumns": ("a", {"valueFormat": "json"}),
    "csvDelimiter": (";", {"valueFormat": "csv"}),
    "avroEncoding": ("single-object", {"valueFormat": "avro"}),
    "schemaRegistry": "r",
    "schemaName": "n",
    "schemaMessage": "M",
    "schemaAutoRegister": "true",
    "schemaCompatibility": "full",
    "schemaCompression": "zlib",
    "glueEndpointUrl": "http://127.0.0.1:1",
    "recordDelimiter": "\\n",
    "recordIds": "true",
    "wireFormat": "json",
    "deadLetterPath": "/letters",
    "aggregation": "true",
    "failOnError": "true",
    "maxBatchSize": "400",
    "maxBufferedRequests": "900",
    "maxBatchSizeInBytes": "3m",
    "maxRecordSizeInBytes": "64k",
    "sinkRateStrategy": "none",
}
"""Another value than the default; where it needs other options, with them. Numbers that are not here are 7."""
for _name in ("sinkRateTarget", "sinkInitialRate", "sinkIncreaseRate", "sinkDecreaseFactor", "sinkRateThreshold"):
    _text = {"sinkRateTarget": "requests", "sinkDecreaseFactor": "0.3"}.get(_name, "600")
    TEXTS[_name] = (_text, {"sinkRateStrategy": "aimd"})

PROOFS = ("serviceToken", "serviceTokenFile", "serviceCaFile", "serviceCertificateFile", "servicePrivateKeyFile")
"""What services are shown: of no use without one."""

HOMES: dict[str, tuple[Place | None, dict[str, str]]] = {
    "in-process": (None, {}),
    "registry": (REGISTRY, {"registryEndpoint": "registry.internal:1", **EFO}),
    "reader": (READER, {"readerEndpoint": "reader.internal:1"}),
    "gateway": (GATEWAY, {"sinkEndpoint": "sink.internal:1"}),
}


def given(spec: OptionSpec) -> tuple[dict[str, str], dict[str, str]]:
    """The option with a value and what it needs; and what it needs alone."""
    found = TEXTS.get(spec.name, "7")
    text, needed = (found, {}) if isinstance(found, str) else found
    if spec.name.endswith("BackoffMax"):
        text = "90s"
    if any(one.with_option == "recordPublisher" for one in spec.refused_with) and not needed:
        needed = EFO
    if spec.name == "recordPublisher":
        return EFO, {}  # the name of a consumer is not an option without it
    name = f"{spec.name}.s" if spec.prefix else spec.name
    return {**needed, name: text}, needed


def parse(options: Mapping[str, str]) -> KinesisOptions:
    all_of_them = {"streamName": "s", "region": "us-east-1", **options}
    return KinesisOptions.parse({name: text for name, text in all_of_them.items() if text}, environ={})


def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from flat(f"{name}.{one.name}", getattr(value, one.name))
    else:
        yield name, value


class Registry:
    """Stands for what leases consumers; notes what it is asked."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def acquire(self, request: Any) -> Lease:
        self.requests.append(request)
        return Lease(
            stream_name=request.stream_name,
            consumer_name=request.consumer_name or "c",
            job_id=request.job_id,
            consumer_arn=request.consumer_arn or CONSUMER,
            fencing_token=1,
            time_to_live_seconds=30.0,
            registration_is_ours=True,
        )

    def keep(self, *_: Any) -> None:
        """Nothing is lost here."""

    release = keep

    def close(self) -> None:
        """Nothing is open."""


def asked(options: KinesisOptions, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[OpenRequest]]:
    """What a query asks of its registry and of its reader, as it arrives there over the wire."""
    registry, opened = Registry(), []

    def open_it(
        session_id: str, positions: StreamPositions, record_publisher: Any, consumers: Any, **more: Any
    ) -> None:
        opened.append(
            OpenRequest(
                session_id=session_id,
                positions=positions,
                record_publisher=record_publisher,
                consumers=tuple(consumers),
                **more,
            )
        )

    reader = SimpleNamespace(open=open_it, close=lambda: None, endpoint="reader.internal:1")
    host = SimpleNamespace(
        reader=reader, close=lambda: None, security=None, address="", socket_path=None, view_token=""
    )
    monkeypatch.setattr(leases_module, "open_registry", lambda **_: registry)
    monkeypatch.setattr(session_module, "connect_reader", lambda *_, **__: reader)
    monkeypatch.setattr(session_module, "_start_host", lambda *_: host)
    monkeypatch.setattr(session_module, "ReaderAnnouncer", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr("uuid.uuid4", lambda: SimpleNamespace(hex="0"))
    session_module.open_session(
        options, StreamPositions({options.arn_of(name) or name: {} for name in options.stream_name})
    )
    acquired = []
    for request in registry.requests:
        sent = consumer_registry_pb2.AcquireRequest.FromString(acquire_message(request).SerializeToString())
        acquired.append(acquire_request(sent))
    received = []
    for request in opened:
        message = shard_reader_pb2.OpenRequest.FromString(open_to_message(request).SerializeToString())
        received.append(open_from_message(message))
    return acquired, received


def effects(options: KinesisOptions, place: Place | None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All that a home is told, and what a service makes of it."""
    if place is GATEWAY:
        firehose = options.delivery_stream_name is not None
        stream = options.delivery_stream_name or options.stream_name[0]
        location = caller_location(options, "firehose" if firehose else "kinesis")
        target: Any = make_sink(options, stream, firehose=firehose, caller=location).create_writer().target
        return {"hello": (target.hello.kind, target.hello.destination, str(target.hello.caller))}
    if place is None:
        whole = {
            "reader": reader_config(options),
            "registrar": registrar_config(options),
            "sink": sink_config(options),
            "aws": options.aws_mapping(),
            "store": options.registry_store,
        }
        return {name: value for key, config in whole.items() for name, value in flat(key, config)}
    acquired, received = asked(options, monkeypatch)
    if place is REGISTRY:
        return {str(number): request for number, request in enumerate(acquired)}
    found: dict[str, Any] = {}
    for request in received:
        found |= dict(flat("request", request))
        if request.settings is not None:
            found |= dict(flat("config", request.settings.reader(ReaderConfig())))
    return found


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("spec", OPTIONS, ids=lambda spec: spec.name)
def test_an_option_acts_in_its_home_or_is_refused_there(
    spec: OptionSpec, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, with the endpoint's own and a cure. What is not about that home acts as without it."""
    place, endpoint = HOMES[home]
    options, without = given(spec)
    if spec.prefix:
        endpoint = {name: text for name, text in endpoint.items() if name != "efoConsumerName"}
    options = {**endpoint, **options}
    refusals = [one for one in spec.refused_with if one.with_option in endpoint and not one.when]
    if refusals:
        with pytest.raises(ContradictoryOptionsError) as caught:
            parse(options)
        assert refusals[0].with_option in caught.value.options
        # What it needs may be refused before it: alone it is refused by its own name.
        endpoints = {field_name(one.with_option): "" for every in OPTIONS for one in every.refused_with}
        alone: Any = SimpleNamespace(**endpoints | {field_name(refusals[0].with_option): "there:1"})
        with pytest.raises(ContradictoryOptionsError, match=f"{refusals[0].cure}. Leave {spec.name} out") as caught:
            check_homes(alone, {spec.name: options[spec.name]})
        assert caught.value.options == (spec.name, refusals[0].with_option)
        return
    if place is None and spec.name in PROOFS:
        with pytest.raises(MissingOptionError, match="no service is given"):
            parse(options)
        return
    parsed = parse(options)
    if spec.name in endpoint:
        assert getattr(parsed, field_name(spec.name))  # what makes it that home
        return
    acts_there = place in spec.acts if place is not None else any(one in spec.acts for one in (READER, REGISTRY))
    if acts_there and spec.name not in ("registryStore",):
        usual = parse({**endpoint, **without})
        if place is None and spec.name not in _CONFIGURED:
            return  # what travels in a call, and is not a setting: its own tests call it
        assert effects(parsed, place, monkeypatch) != effects(usual, place, monkeypatch)
        return
    # It is about something else, which the endpoint leaves where it is.
    assert set(spec.acts) & {Place.DRIVER, Place.TASK, *_other_places(home)}
    assert field_name(spec.name) in read_fields() or spec.name in _MERGED


_CONFIGURED = {one.name for one in OPTIONS if one.group == "retries"} | {
    *("subscribeTransport", "getRecordsMaxRecords", "getRecordsInterval", "adaptiveReads", "shardDiscoveryInterval"),
    *("retryPatience", "bufferBytes", "bufferBytesPerShard", "spillBytes", "spillFolder", "idleOffsetInterval"),
    *("failOnDataLoss", "deaggregate", "recordPublisher", "registryStore"),
}
"""Options that are settings of the reader or the registry in this process."""

_MERGED = {
    "initialTimestamp": "initialPosition",
    "initialTimestampFormat": "initialPosition",
    "boundedUntil": "endingPosition",
    "continueFrom": "initialPosition",
    "efoConsumerNamePrefix": "efoConsumerName",
    "streamNamePattern": "streamName",
    "streamArn": "streamName",
    "deliveryStreamName": "streamName",
    "allowInsecureEndpoint": "endpointUrl",
    "awsCredentialsProvider": "awsAccessKeyId",
    "roleCredentialsProvider": "roleArn",
}
"""Options that become part of another one, or that only decide whether options are accepted, as they are parsed."""


def _other_places(home: str) -> set[Place]:
    return {place for name, (place, _) in HOMES.items() if place is not None and name != home}


def read_fields() -> set[str]:
    """Fields of options that code beyond their parsing reads."""
    if not _READ:
        folder = Path(plugin.__file__).parent
        for path in folder.rglob("*.py"):
            if path.parent.name != "_options":
                _READ.update(
                    node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
                )
        # `_sinks.py` takes its limits by their names, the session its credentials by `aws_mapping`.
        _READ.update(field_name(spec.name) for spec in OPTIONS if spec.name in _BY_NAME)
    return _READ


ENTRANCES = {
    Use.READ: ("_reading.bounded.reader",),
    Use.READ_STREAM: ("_reading.stream.plain_reader", "_reading.session.session"),
    Use.WRITE: ("_writing._writer", "_firehose"),
}


@functools.cache
def read_in(use: Use) -> frozenset[str]:
    """Fields of options that the modules read which a use of the data source imports."""
    found, pending, seen = set(_READ_BY_NAME), list(ENTRANCES[use]), set[str]()
    while pending:
        name = pending.pop()
        path = Path(plugin.__file__).parent / f"{name.replace('.', '/')}.py"
        if name in seen or name.startswith("_options") or not path.exists():
            continue
        seen.add(name)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{plugin.__name__}."):
                pending.append(str(node.module).removeprefix(f"{plugin.__name__}."))
    return frozenset(found)


def use_it(use: Use, options: Mapping[str, str]) -> None:
    """As Spark does: with keys in lower case, to the source and its reader or writer."""
    source = KinesisDataSource(
        {name.lower(): text for name, text in {"region": "us-east-1", **options}.items() if text}
    )
    if use is Use.WRITE:
        source.writer(StructType().add("data", "binary").add("partitionKey", "string"), overwrite=False)
    elif use is Use.READ:
        source.reader(read_schema(source._parsed))
    else:
        reader = source.streamReader(read_schema(source._parsed))
        if isinstance(reader, RefusedStreamReader):
            reader.initialOffset()


USES = [use for use in Use if use is not Use.ANY_READ]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("spec", OPTIONS, ids=lambda spec: spec.name)
def test_an_option_acts_in_a_use_or_is_refused_there(spec: OptionSpec, use: Use) -> None:
    """A bounded read, a stream that is read, a write: code of that use reads it, or it is refused by its name."""
    options, _ = given(spec)
    if use not in spec.uses:
        with pytest.raises((MisplacedOptionError, IrrelevantOptionError, MissingOptionError)):
            use_it(use, {"streamName": "s", **options})
        name = f"{spec.name}.s" if spec.prefix else spec.name
        for key in [f"{one}.s" for one in (spec.name, *spec.aliases)] if spec.prefix else (spec.name, *spec.aliases):
            # What it needs may be refused before it: alone it is refused by the name that was written.
            with pytest.raises(MisplacedOptionError, match=rf"^option '{re.escape(key)}' belongs to") as caught:
                check_use({key if spec.prefix else key.lower(): options[name]}, use)
            assert caught.value.found_on == use.value
        return
    assert field_name(_MERGED.get(spec.name, spec.name)) in read_in(use)


def test_what_a_bounded_read_does_anyway_may_be_said() -> None:
    """It polls; options that are of use with enhanced fan-out are not."""
    use_it(Use.READ, {"streamName": "s", "kinesis.consumerType": "GetRecords"})
    for key in ("recordPublisher", "kinesis.consumerType", "flink.stream.recordpublisher"):
        with pytest.raises(MisplacedOptionError, match=rf"'{re.escape(key)}' belongs to streams that are read.*polls"):
            use_it(Use.READ, {"streamName": "s", key: "efo", "efoConsumerName": "c"})


@pytest.mark.parametrize("spec", OPTIONS, ids=lambda spec: spec.name)
def test_what_only_enhanced_fan_out_uses_is_refused_without_it(spec: OptionSpec) -> None:
    """By the name that the user wrote. Polling's own options act beside it: shards that bring nothing are polled."""
    if not any(one.when == "polling" for one in spec.refused_with):
        service = {"registryEndpoint": "registry:1"} if spec.name in PROOFS else {}
        assert spec.name == "recordPublisher" or parse({**EFO, **service, **given(spec)[0]})
        return
    text = given(spec)[0][f"{spec.name}.s" if spec.prefix else spec.name]
    names = [spec.name, *spec.aliases]
    for name in [f"{one}.s" for one in names] if spec.prefix else names:
        for publisher, other in (({}, "recordPublisher"), ({"consumerMode": "polling"}, "consumerMode")):
            with pytest.raises(ContradictoryOptionsError, match=f"give {other}=efo for enhanced fan-out") as caught:
                parse({name: text, **publisher})
            assert caught.value.options == (name, other)
            assert f"leave {name} out" in str(caught.value)


_READ: set[str] = set()
_BY_NAME = {
    *("maxBatchSize", "maxInFlightRequests", "maxBufferedRequests", "maxBatchSizeInBytes", "maxRecordSizeInBytes"),
    *(one.name for one in OPTIONS if one.group == "credentials"),
    *("region", "endpointUrl", "caBundle", "proxyUrl"),
}


_READ_BY_NAME = frozenset(field_name(name) for name in _BY_NAME)


@pytest.mark.parametrize("name", sorted(_BY_NAME - set(_MERGED)))
def test_what_is_taken_by_its_name_arrives(name: str) -> None:
    """Limits of the sink in its config, and what reaches AWS in the session's options."""
    spec = next(one for one in OPTIONS if one.name == name)
    options, without = given(spec)
    before, after = (
        {**dict(flat("sink", sink_config(one))), **one.aws_mapping()} for one in map(parse, (without, options))
    )
    assert before != after


def test_every_option_says_where_it_acts() -> None:
    """And no place twice; the defaults of what a request carries are those of the packages."""
    assert [spec.name for spec in OPTIONS if not spec.acts or len(set(spec.acts)) < len(spec.acts)] == []
    assert registrar_config(parse({})) == RegistrarConfig()
