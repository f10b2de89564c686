"""The options, as the packages that reading stands on take them."""

from datetime import timedelta
from pathlib import Path

from penstock.aws import BackoffPolicy
from penstock.efo_consumer import (
    ReaderConfig,
    RecordPublisherConfig,
    RecordPublisherType,
    SessionSettings,
    SubscribeTransportType,
)
from penstock.registration import RegistrarConfig
from penstock.spark_plugin._options.kinesis_options import KinesisOptions


def registrar_config(options: KinesisOptions) -> RegistrarConfig:
    """Retries of registration: FLIP-128's keys."""
    return RegistrarConfig(
        register_max_retries=options.register_stream_consumer_max_retries,
        register_backoff_base=_milliseconds(options.register_stream_consumer_backoff_base),
        register_backoff_max=_milliseconds(options.register_stream_consumer_backoff_max),
        register_backoff_expconst=options.register_stream_consumer_backoff_exponent,
        deregister_max_retries=options.deregister_stream_consumer_max_retries,
        deregister_backoff_base=_milliseconds(options.deregister_stream_consumer_backoff_base),
        deregister_backoff_max=_milliseconds(options.deregister_stream_consumer_backoff_max),
        deregister_backoff_expconst=options.deregister_stream_consumer_backoff_exponent,
        list_max_retries=options.list_stream_consumers_max_retries,
        list_backoff_base=_milliseconds(options.list_stream_consumers_backoff_base),
        list_backoff_max=_milliseconds(options.list_stream_consumers_backoff_max),
        list_backoff_expconst=options.list_stream_consumers_backoff_exponent,
        register_timeout=timedelta(seconds=options.register_stream_consumer_timeout),
        deregister_timeout=timedelta(seconds=options.deregister_stream_consumer_timeout),
    )


def reader_config(options: KinesisOptions) -> ReaderConfig:
    """The in-process reader's buffers and retries."""
    return ReaderConfig(
        buffer_bytes=options.buffer_bytes,
        buffer_bytes_per_shard=options.buffer_bytes_per_shard,
        spill_bytes=options.spill_bytes,
        spill_folder=Path(options.spill_folder) if options.spill_folder is not None else None,
        idle_offset_interval=timedelta(seconds=options.idle_offset_interval),
        discovery_interval=timedelta(seconds=options.shard_discovery_interval),
        fail_on_data_loss=options.fail_on_data_loss,
        deaggregate=options.deaggregate,
        publisher=publisher_config(options),
    )


def session_settings(options: KinesisOptions) -> SessionSettings:
    """What a reader behind an endpoint is told for this query's session."""
    config = reader_config(options)
    publisher = config.publisher
    transport = publisher.subscribe_transport
    return SessionSettings(
        subscribe_to_shard=publisher.subscribe_to_shard,
        get_records=publisher.get_records,
        get_shard_iterator=publisher.get_shard_iterator,
        get_records_max_records=publisher.get_records_max_records,
        get_records_interval=publisher.get_records_interval,
        get_records_adaptive=publisher.get_records_adaptive,
        # auto leaves it to the reader, which knows its endpoint.
        subscribe_transport=None if transport is SubscribeTransportType.AUTO else transport,
        connect_timeout=publisher.connect_timeout,
        discovery_interval=config.discovery_interval,
        idle_offset_interval=config.idle_offset_interval,
    )


def publisher_config(options: KinesisOptions) -> RecordPublisherConfig:
    """How shards are followed, and polled."""
    return RecordPublisherConfig(
        record_publisher=RecordPublisherType(options.record_publisher),
        subscribe_transport=SubscribeTransportType(options.subscribe_transport),
        retry_patience=timedelta(seconds=options.retry_patience),
        subscribe_to_shard=BackoffPolicy(
            base=_milliseconds(options.subscribe_to_shard_backoff_base),
            maximum=_milliseconds(options.subscribe_to_shard_backoff_max),
            exponent=options.subscribe_to_shard_backoff_exponent,
            max_attempts=_attempts(options.subscribe_to_shard_max_retries),
        ),
        get_records=BackoffPolicy(
            base=_milliseconds(options.get_records_backoff_base),
            maximum=_milliseconds(options.get_records_backoff_max),
            exponent=options.get_records_backoff_exponent,
            max_attempts=_attempts(options.get_records_max_retries),
        ),
        get_shard_iterator=BackoffPolicy(
            base=_milliseconds(options.get_shard_iterator_backoff_base),
            maximum=_milliseconds(options.get_shard_iterator_backoff_max),
            exponent=options.get_shard_iterator_backoff_exponent,
            max_attempts=_attempts(options.get_shard_iterator_max_retries),
        ),
        get_records_max_records=options.get_records_max_records,
        get_records_interval=_milliseconds(options.get_records_interval),
        get_records_adaptive=options.adaptive_reads,
        connect_timeout=timedelta(seconds=options.subscribe_to_shard_timeout),
    )


def _attempts(retries: int | None) -> int | None:
    return None if retries is None else retries + 1


def _milliseconds(value: float) -> timedelta:
    return timedelta(milliseconds=value)
