"""The sink that a write task uses: its own, or the gateway that all tasks share."""

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from penstock.async_sink import AsyncSinkConfig, KinesisStreamsSink, rate_strategy
from penstock.async_sink.errors import SinkOptionError
from penstock.spark_plugin._connections import aws_options, service_security
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.table import BY_NAME

if TYPE_CHECKING:
    from penstock.async_sink import FirehoseSink, RateLimitingStrategy, RemoteSink, TerminalRecordHandler
    from penstock.aws import AwsLocation, AwsSession

_LIMITS = tuple(
    BY_NAME[name]
    for name in (
        "maxBatchSize",
        "maxInFlightRequests",
        "maxBufferedRequests",
        "maxBatchSizeInBytes",
        "maxRecordSizeInBytes",
    )
)

Terminal = Callable[[], "TerminalRecordHandler"]
Strategy = Callable[[AsyncSinkConfig], "RateLimitingStrategy"]


def make_sink(
    options: KinesisOptions,
    stream: str | None = None,
    *,
    firehose: bool = False,
    terminal: Terminal | None = None,
    session: "AwsSession | None" = None,
    caller: "AwsLocation | None" = None,
) -> "KinesisStreamsSink | FirehoseSink[Any] | RemoteSink":
    """The sink for a stream; for that of the options by default. With a `session` it is not made anew of the options.

    `caller` is where the stream is, for the gateway to compare.

    Raises:
        penstock.async_sink.errors.SinkOptionError: a limit is above the service's.
    """
    stream = options.stream_name[0] if stream is None else stream
    arn = options.arn_of(stream)
    config = sink_config(options, firehose=firehose)
    if options.sink_endpoint is not None:
        from penstock.async_sink import RemoteSink

        return RemoteSink(
            options.sink_endpoint,
            service_security(options),
            kind="firehose" if firehose else "kinesis",
            destination=arn or stream,
            config=config,
            terminal=terminal,
            caller=caller,
        )
    aws = aws_options(options) if session is None else session
    if firehose:
        from penstock.async_sink import FirehoseSink, slow_start_strategy

        strategy = _strategy(options, slow_start_strategy, decrease_factor=0.5)
        return FirehoseSink(aws, stream, config=config, strategy=strategy, terminal=terminal)
    from penstock.async_sink import AggregationConfig, aggregation_strategy, kinesis_strategy

    usual: Strategy = aggregation_strategy if options.aggregation else kinesis_strategy
    return KinesisStreamsSink(
        aws,
        stream_name=None if arn else stream,
        stream_arn=arn,
        config=config,
        strategy=_strategy(options, usual, decrease_factor=0.99),
        aggregation=AggregationConfig() if options.aggregation else None,
        terminal=terminal,
        wire_format=cast("Literal['cbor', 'json'] | None", options.wire_format),
    )


def sink_config(options: KinesisOptions, *, firehose: bool = False) -> AsyncSinkConfig:
    """Limits of a writer: those that were given, and where none was, those that suit the destination.

    Raises:
        penstock.async_sink.errors.SinkOptionError: two limits contradict each other.
    """
    limits = {spec.field: getattr(options, spec.field) for spec in _LIMITS if options.is_given(spec)}
    common: dict[str, Any] = {
        **limits,
        "max_time_in_buffer": timedelta(milliseconds=options.max_time_in_buffer),
        "fail_on_error": options.fail_on_error,
        "max_attempts": options.max_attempts,
        "time_to_live": None if options.time_to_live is None else timedelta(seconds=options.time_to_live),
    }
    if firehose:
        from penstock.async_sink import firehose_config

        config, most = firehose_config(**common), firehose_config().max_record_size_in_bytes
        if config.max_record_size_in_bytes > most:
            size = config.max_record_size_in_bytes
            raise SinkOptionError.out_of_bounds("max_record_size_in_bytes", size, "at most", most)
        return config
    if options.aggregation:
        from penstock.async_sink import kinesis_aggregation_config

        return kinesis_aggregation_config(**common)
    return AsyncSinkConfig(**common)


def _strategy(options: KinesisOptions, usual: Strategy, *, decrease_factor: float) -> Strategy:
    """How each writer finds its rate: as `sinkRateStrategy` says, within the rates that were given."""
    return rate_strategy(
        usual,
        strategy=options.sink_rate_strategy,
        usual_decrease_factor=decrease_factor,
        records_per_second=options.max_records_per_second,
        bytes_per_second=options.max_bytes_per_second,
    )
