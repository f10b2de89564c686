"""Every option, with every home of what it is about: its value is there, or it is refused by name."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from option_texts import CONSUMER, EFO, given, names, parse, text_of

import penstock.spark_plugin as plugin
from penstock.efo_consumer import OpenRequest, ReaderConfig, StreamPositions
from penstock.efo_consumer._remote.client import MESSAGES
from penstock.proto.consumer_registry.v1 import consumer_registry_pb2
from penstock.proto.shard_reader.v1 import shard_reader_pb2
from penstock.registration import Lease
from penstock.registration._remote.messages import acquire_message, acquire_request
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._connections import caller_location
from penstock.spark_plugin._options.parsing import check_use
from penstock.spark_plugin._options.spec import OptionSpec, Place, Use
from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin._reading.session import leases as leases_module
from penstock.spark_plugin._reading.session import session as session_module
from penstock.spark_plugin._reading.session.configs import reader_config
from penstock.spark_plugin._writing.sink_task import make_sink, sink_config
from penstock.spark_plugin.errors import OptionError

PROOFS = ("serviceToken", "serviceTokenFile", "serviceCaFile", "serviceCertificateFile", "servicePrivateKeyFile")
"""What services are shown: of no use without one."""

HOMES: dict[str, tuple[Place | None, dict[str, str]]] = {
    "in-process": (None, {}),
    "registry": (Place.REGISTRY, {"registryEndpoint": "registry.internal:1", **EFO}),
    "reader": (Place.READER, {"readerEndpoint": "reader.internal:1"}),
    "gateway": (Place.GATEWAY, {"sinkEndpoint": "sink.internal:1"}),
}
MERGED = {
    *("initialTimestamp", "efoConsumerNamePrefix", "deliveryStreamName", "queueUrl"),
    *("allowInsecureEndpoint", "awsCredentialsProvider", "roleCredentialsProvider"),
}
"""Options that become part of another one, or that only decide whether options are accepted, as they are parsed."""


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
    session_module.ReadingSession(
        options, StreamPositions({options.arn_of(name) or name: {} for name in options.stream_name})
    )
    acquired = []
    for request in registry.requests:
        sent = consumer_registry_pb2.AcquireRequest.FromString(acquire_message(request).SerializeToString())
        acquired.append(acquire_request(sent))
    received = []
    for request in opened:
        message = MESSAGES.to(shard_reader_pb2.OpenRequest, request)
        received.append(MESSAGES.of(OpenRequest, message))
    return acquired, received


def effects(options: KinesisOptions, place: Place | None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Everything that a home receives, and what a service makes of it."""
    if place is Place.GATEWAY:
        named = {
            "firehose": options.delivery_stream_name,
            "sqs": options.queue_url,
            "dynamodb": options.table_name,
            "kinesis": options.stream_name[0],
        }
        kind, stream = next((kind, name) for kind, name in named.items() if name is not None)
        location = caller_location(options, kind)
        target: Any = make_sink(options, stream, kind=kind, caller=location).create_writer().target
        return {"hello": (target.hello.kind, target.hello.destination, str(target.hello.caller))}
    if place is None:
        whole = {
            "reader": reader_config(options),
            "sink": sink_config(options),
            "aws": options.aws_mapping(),
        }
        return {name: value for key, config in whole.items() for name, value in flat(key, config)}
    acquired, received = asked(options, monkeypatch)
    if place is Place.REGISTRY:
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
    """A service gets its value in the request, or the option contradicts the endpoint."""
    place, endpoint = HOMES[home]
    options, without = given(spec)
    if spec.prefix:
        endpoint = {name: text for name, text in endpoint.items() if name != "efoConsumerName"}
    options = {**endpoint, **options}
    if endpoint.keys() & spec.not_with:
        with pytest.raises(OptionError) as caught:
            parse(options)
        assert caught.value.code == "CONTRADICTORY_OPTIONS"
        assert {caught.value.option, caught.value.facts["other"]} & spec.not_with.keys()
        return
    if place is None and spec.name in PROOFS:
        with pytest.raises(OptionError, match="MISSING_OPTION"):
            parse(options)
        return
    parsed = parse(options)
    acts_there = place in spec.acts if place is not None else {Place.READER, Place.REGISTRY} & set(spec.acts)
    if acts_there and spec.name not in endpoint and not (place is None and spec.name not in CONFIGURED):
        usual = parse({**endpoint, **without})
        assert effects(parsed, place, monkeypatch) != effects(usual, place, monkeypatch)


CONFIGURED = {one.name for one in OPTIONS if one.group == "retries"} | {
    *("subscribeTransport", "getRecordsMaxRecords", "getRecordsInterval", "shardDiscoveryInterval", "deaggregate"),
    *("retryPatience", "bufferBytes", "bufferBytesPerShard", "idleOffsetInterval", "failOnDataLoss"),
}
"""Options that are settings of the reader or the registry in this process."""

SINK = {
    *("maxBatchSize", "maxInFlightRequests", "maxBufferedRequests", "maxBatchSizeInBytes", "maxRecordSizeInBytes"),
    *("maxTimeInBuffer", "failOnError", "maxAttempts", "timeToLive"),
}


@pytest.mark.parametrize("spec", [one for one in OPTIONS if one.name in CONFIGURED | SINK], ids=lambda spec: spec.name)
def test_a_setting_changes_one_place_alone(spec: OptionSpec) -> None:
    """In the configurations of the packages below; retries of GetRecords also hold for GetShardIterator."""
    options, without = given(spec)

    def settings(options: dict[str, str]) -> dict[str, Any]:
        parsed = parse(options)
        whole = {"reader": reader_config(parsed), "sink": sink_config(parsed)}
        return {place: value for name, config in whole.items() for place, value in flat(name, config)}

    usual, found = settings(without), settings(options)
    changed = [place for place, value in found.items() if value != usual[place]]
    retries = spec.group == "retries" and spec.name.startswith("getRecords")
    assert len(changed) == (2 if retries else 1), changed


def test_every_option_is_read_where_it_acts() -> None:
    """By code beyond their parsing; what the session takes goes there by `aws_mapping`."""
    code = "".join(
        path.read_text() for path in Path(plugin.__file__).parent.rglob("*.py") if path.parent.name != "_options"
    )
    unread = {
        spec.name
        for spec in OPTIONS
        if not re.search(rf"\.{spec.field}\b", code) and spec.name not in MERGED | SINK and spec.group != "credentials"
    }
    assert unread <= {"region", "caBundle", "proxyUrl", "streamArn", "serviceToken"}


@pytest.mark.parametrize("spec", [one for one in OPTIONS if one.group == "credentials"], ids=lambda spec: spec.name)
def test_credentials_reach_the_session(spec: OptionSpec) -> None:
    options, without = given(spec)
    before, after = (parse(one).aws_mapping() for one in (without, options))
    assert spec.name in MERGED or after == {**before, spec.name: after[spec.name]}


@pytest.mark.parametrize("use", [use for use in Use if use is not Use.ANY_READ])
@pytest.mark.parametrize("spec", OPTIONS, ids=lambda spec: spec.name)
def test_an_option_is_refused_in_a_use_in_which_it_would_do_nothing(spec: OptionSpec, use: Use) -> None:
    """By each of its names, as it was written."""
    for name in names(spec):
        key = f"{name}.s" if spec.prefix else name
        options = {key if spec.prefix else key.lower(): text_of(spec)}
        if use in spec.uses:
            check_use(options, use)
            continue
        with pytest.raises(OptionError) as caught:
            check_use(options, use)
        assert caught.value.code == "MISPLACED_OPTION"
        assert (caught.value.option, caught.value.facts["found_on"]) == (key, use.value)


def test_what_a_bounded_read_does_anyway_may_be_said() -> None:
    """It polls; options that are of use with enhanced fan-out are not."""
    check_use({"kinesis.consumerType": "GetRecords"}, Use.READ)
    with pytest.raises(OptionError, match="MISPLACED_OPTION"):
        check_use({"kinesis.consumerType": "SubscribeToShard"}, Use.READ)


@pytest.mark.parametrize(
    "spec", [one for one in OPTIONS if one.needs == "recordPublisher=efo"], ids=lambda spec: spec.name
)
def test_what_only_enhanced_fan_out_uses_is_refused_without_it(spec: OptionSpec) -> None:
    """By the name that the user wrote."""
    for name in names(spec):
        key = f"{name}.s" if spec.prefix else name
        for publisher, other in (({}, "recordPublisher"), ({"consumerMode": "polling"}, "consumerMode")):
            with pytest.raises(OptionError) as caught:
                parse({key: text_of(spec), **publisher})
            assert caught.value.code == "CONTRADICTORY_OPTIONS"
            assert (caught.value.option, caught.value.facts["other"]) == (key, other)


def test_every_option_says_where_it_acts() -> None:
    """And no place twice."""
    assert [spec.name for spec in OPTIONS if not spec.acts or len(set(spec.acts)) < len(spec.acts)] == []
