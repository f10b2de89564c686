"""Each option arrives in the one place that it is for, in the packages that reading and writing stand on."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.async_sink import AsyncSinkConfig
from penstock.efo_consumer import RecordPublisherType, SubscribeTransportType
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin._reading.session.configs import reader_config, registrar_config
from penstock.spark_plugin._writing._sinks import sink_config


def milliseconds(number: float) -> timedelta:
    return timedelta(milliseconds=number)


def retries(option: str, place: str, names: tuple[str, str, str, str], *, more_attempts: int = 0) -> Iterator[Any]:
    retries_at, base, maximum, exponent = (f"{place}{name}" for name in names)
    yield f"{option}MaxRetries", "17", {retries_at: 17 + more_attempts}
    yield f"{option}BackoffBase", "123", {base: milliseconds(123)}
    yield f"{option}BackoffMax", "45s", {maximum: milliseconds(45_000)}
    yield f"{option}BackoffExponent", "2.5", {exponent: 2.5}


OF_REGISTRAR = ("_max_retries", "_backoff_base", "_backoff_max", "_backoff_expconst")
OF_POLICY = (".max_attempts", ".base", ".maximum", ".exponent")
ARRIVES: list[tuple[str, str, dict[str, Any]]] = [
    *retries("registerStreamConsumer", "registrar.register", OF_REGISTRAR),
    *retries("deregisterStreamConsumer", "registrar.deregister", OF_REGISTRAR),
    *retries("listStreamConsumers", "registrar.list", OF_REGISTRAR),
    *retries("subscribeToShard", "reader.publisher.subscribe_to_shard", OF_POLICY, more_attempts=1),
    *retries("getRecords", "reader.publisher.get_records", OF_POLICY, more_attempts=1),
    *retries("getShardIterator", "reader.publisher.get_shard_iterator", OF_POLICY, more_attempts=1),
    ("registerStreamConsumerTimeout", "2m", {"registrar.register_timeout": milliseconds(120_000)}),
    ("deregisterStreamConsumerTimeout", "2m", {"registrar.deregister_timeout": milliseconds(120_000)}),
    ("subscribeToShardTimeout", "30", {"reader.publisher.connect_timeout": milliseconds(30_000)}),
    ("getRecordsMaxRecords", "500", {"reader.publisher.get_records_max_records": 500}),
    ("getRecordsInterval", "2s", {"reader.publisher.get_records_interval": milliseconds(2000)}),
    ("adaptiveReads", "false", {"reader.publisher.get_records_adaptive": False}),
    ("subscribeTransport", "http1", {"reader.publisher.subscribe_transport": SubscribeTransportType.HTTP1}),
    ("shardDiscoveryInterval", "3s", {"reader.discovery_interval": milliseconds(3000)}),
    ("retryPatience", "90s", {"reader.publisher.retry_patience": milliseconds(90_000)}),
    ("failOnDataLoss", "false", {"reader.fail_on_data_loss": False}),
    ("deaggregate", "false", {"reader.deaggregate": False}),
    ("deaggregate", "All", {"reader.deaggregate": "all"}),
    ("bufferBytes", "256m", {"reader.buffer_bytes": 256 << 20}),
    ("bufferBytesPerShard", "4m", {"reader.buffer_bytes_per_shard": 4 << 20}),
    ("spillBytes", "1g", {"reader.spill_bytes": 1 << 30}),
    ("idleOffsetInterval", "7m", {"reader.idle_offset_interval": milliseconds(420_000)}),
    ("maxBatchSize", "400", {"sink.max_batch_size": 400}),
    ("maxInFlightRequests", "9", {"sink.max_in_flight_requests": 9}),
    ("maxBufferedRequests", "900", {"sink.max_buffered_requests": 900}),
    ("maxBatchSizeInBytes", "3m", {"sink.max_batch_size_in_bytes": 3 << 20}),
    ("maxRecordSizeInBytes", "64k", {"sink.max_record_size_in_bytes": 64 << 10}),
    ("maxTimeInBuffer", "1500", {"sink.max_time_in_buffer": milliseconds(1500)}),
    ("failOnError", "true", {"sink.fail_on_error": True}),
    ("maxAttempts", "4", {"sink.max_attempts": 4}),
    ("timeToLive", "30s", {"sink.time_to_live": milliseconds(30_000)}),
]


def places(options: KinesisOptions) -> dict[str, Any]:
    """All settings that are made of options, by their places."""
    sink: AsyncSinkConfig = sink_config(options)
    whole = {"registrar": registrar_config(options), "reader": reader_config(options), "sink": sink}
    return {place: value for name, config in whole.items() for place, value in flat(name, config)}


def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from flat(f"{name}.{one.name}", getattr(value, one.name))
    else:
        yield name, value


@pytest.mark.parametrize(("name", "text", "changed"), ARRIVES, ids=[name for name, _, _ in ARRIVES])
def test_an_option_changes_its_own_place_alone(name: str, text: str, changed: dict[str, Any]) -> None:
    """By its value, in its unit; all others stay as they are by default."""
    efo = {"streamName": "s", "recordPublisher": "efo", "efoConsumerName": "c"}
    usual, found = (places(KinesisOptions.parse(options, environ={})) for options in (efo, {**efo, name: text}))
    assert {place: value for place, value in found.items() if value != usual[place]} == changed


def test_options_that_need_others_arrive_too() -> None:
    """A publisher with its consumer, and a folder with the bytes that it may hold."""
    efo, spill = {"recordPublisher": "efo", "efoConsumerName": "c"}, {"spillFolder": "/mnt/spill", "spillBytes": "1g"}
    config = reader_config(KinesisOptions.parse({"streamName": "s", **efo, **spill}, environ={}))
    assert config.publisher.record_publisher is RecordPublisherType.EFO
    assert (config.spill_folder, config.spill_bytes) == (Path("/mnt/spill"), 1 << 30)


def test_no_retry_is_left_out() -> None:
    """An option of that group that is new has to be given its place here."""
    assert {spec.name for spec in OPTIONS if spec.group == "retries"} <= {name for name, _, _ in ARRIVES}
