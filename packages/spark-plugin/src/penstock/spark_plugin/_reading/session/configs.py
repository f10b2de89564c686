"""The options, as the packages below accept them."""

from datetime import timedelta

from penstock.aws import BackoffPolicy
from penstock.efo_consumer import (
    ReaderConfig,
    RecordPublisherConfig,
    RecordPublisherType,
    SessionSettings,
    SubscribeTransportType,
)
from penstock.spark_plugin._options.kinesis_options import KinesisOptions


def reader_config(options: KinesisOptions) -> ReaderConfig:
    """The in-process reader's buffers and retries."""
    return ReaderConfig(
        buffer_bytes=options.buffer_bytes,
        buffer_bytes_per_shard=options.buffer_bytes_per_shard,
        idle_offset_interval=timedelta(seconds=options.idle_offset_interval),
        discovery_interval=timedelta(seconds=options.shard_discovery_interval),
        fail_on_data_loss=options.fail_on_data_loss,
        deaggregate=options.deaggregate,
        publisher=publisher_config(options),
    )


def session_settings(options: KinesisOptions) -> SessionSettings:
    """The settings of this query's session at a reader behind an endpoint."""
    config = reader_config(options)
    publisher = config.publisher
    transport = publisher.subscribe_transport
    return SessionSettings(
        subscribe_to_shard=publisher.subscribe_to_shard,
        get_records=publisher.get_records,
        get_shard_iterator=publisher.get_shard_iterator,
        get_records_max_records=publisher.get_records_max_records,
        get_records_interval=publisher.get_records_interval,
        # auto leaves it to the reader, which knows its endpoint.
        subscribe_transport=None if transport is SubscribeTransportType.AUTO else transport,
        connect_timeout=publisher.connect_timeout,
        discovery_interval=config.discovery_interval,
        idle_offset_interval=config.idle_offset_interval,
    )


def publisher_config(options: KinesisOptions) -> RecordPublisherConfig:
    """How shards are followed, and polled."""
    get_records = BackoffPolicy(
        base=_milliseconds(options.get_records_backoff_base),
        maximum=_milliseconds(options.get_records_backoff_max),
        max_attempts=_attempts(options.get_records_max_retries),
    )
    return RecordPublisherConfig(
        record_publisher=RecordPublisherType(options.record_publisher),
        subscribe_transport=SubscribeTransportType(options.subscribe_transport),
        retry_patience=timedelta(seconds=options.retry_patience),
        subscribe_to_shard=BackoffPolicy(
            base=_milliseconds(options.subscribe_to_shard_backoff_base),
            maximum=_milliseconds(options.subscribe_to_shard_backoff_max),
            max_attempts=_attempts(options.subscribe_to_shard_max_retries),
        ),
        get_records=get_records,
        get_shard_iterator=get_records,
        get_records_max_records=options.get_records_max_records,
        get_records_interval=_milliseconds(options.get_records_interval),
        connect_timeout=timedelta(seconds=options.subscribe_to_shard_timeout),
    )


def _attempts(retries: int | None) -> int | None:
    return None if retries is None else retries + 1


def _milliseconds(value: float) -> timedelta:
    return timedelta(milliseconds=value)
