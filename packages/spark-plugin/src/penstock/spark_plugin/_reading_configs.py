"""The options, as the packages that reading stands on take them."""

from datetime import timedelta

from penstock.aws import BackoffPolicy
from penstock.efo_consumer import ReaderConfig, RecordPublisherConfig, RecordPublisherType, SubscribeTransportType
from penstock.registration import RegistrarConfig
from penstock.spark_plugin._options import KinesisOptions


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
    )


def reader_config(options: KinesisOptions) -> ReaderConfig:
    """The in-process reader's buffers and retries."""
    return ReaderConfig(
        buffer_bytes=options.buffer_bytes,
        buffer_bytes_per_shard=options.buffer_bytes_per_shard,
        idle_offset_interval=timedelta(seconds=options.idle_offset_interval),
        fail_on_data_loss=options.fail_on_data_loss,
        publisher=RecordPublisherConfig(
            record_publisher=RecordPublisherType(options.record_publisher),
            subscribe_transport=SubscribeTransportType(options.subscribe_transport),
            subscribe_to_shard=BackoffPolicy(
                base=_milliseconds(options.subscribe_to_shard_backoff_base),
                maximum=_milliseconds(options.subscribe_to_shard_backoff_max),
                exponent=options.subscribe_to_shard_backoff_exponent,
                max_attempts=options.subscribe_to_shard_max_retries + 1,
            ),
        ),
    )


def _milliseconds(value: float) -> timedelta:
    return timedelta(milliseconds=value)
