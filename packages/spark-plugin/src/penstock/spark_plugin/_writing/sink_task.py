"""What a write task does with its records: the sinks of their streams, until everything is acknowledged."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from pyspark.sql.datasource import WriterCommitMessage

from penstock import async_sink
from penstock.async_sink import AsyncSinkConfig, rate_strategy
from penstock.spark_plugin._connections import aws_options, service_security
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.table import BY_NAME
from penstock.spark_plugin.errors import SparkPluginError

if TYPE_CHECKING:
    from penstock.async_sink import RateLimitingStrategy, TerminalRecordHandler
    from penstock.aws import AwsLocation, AwsSession


_LIMITS = tuple(
    BY_NAME[f"max{name}"]
    for name in ("BatchSize", "InFlightRequests", "BufferedRequests", "BatchSizeInBytes", "RecordSizeInBytes")
)

_SINKS = {
    "firehose": ("FirehoseSink", "firehose_config"),
    "sqs": ("SqsSink", "sqs_config"),
    "dynamodb": ("DynamoDbSink", "dynamodb_config"),
}
"""Names of the sinks without shards, and of what makes their limits."""

Terminal = Callable[[], "TerminalRecordHandler"]
Strategy = Callable[[AsyncSinkConfig], "RateLimitingStrategy"]


def make_sink(
    options: KinesisOptions,
    stream: str | None = None,
    *,
    kind: str = "kinesis",
    terminal: Terminal | None = None,
    session: "AwsSession | None" = None,
    caller: "AwsLocation | None" = None,
) -> Any:
    """The sink for a stream; by default the stream of the options. A `session` is used instead of a new one.

    `caller` is where the stream is, for the gateway to compare.

    Raises:
        penstock.async_sink.errors.SinkOptionError: a limit is above the service's.
    """
    stream = options.stream_name[0] if stream is None else stream
    arn = options.arn_of(stream)
    config = sink_config(options, kind)
    if options.sink_endpoint is not None:
        from penstock.async_sink import RemoteSink

        return RemoteSink(
            options.sink_endpoint,
            service_security(options),
            kind=kind,
            destination=arn or stream,
            config=config,
            terminal=terminal,
            caller=caller,
        )
    aws = aws_options(options) if session is None else session
    if kind in _SINKS:
        strategy = _strategy(options, async_sink.slow_start_strategy, decrease_factor=0.5)
        sink = getattr(async_sink, _SINKS[kind][0])
        return sink(aws, stream, config=config, strategy=strategy, terminal=terminal)
    from penstock.async_sink import AggregationConfig, KinesisStreamsSink, aggregation_strategy, kinesis_strategy

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


def sink_config(options: KinesisOptions, kind: str = "kinesis") -> AsyncSinkConfig:
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
    if options.sink_endpoint is None:
        # A request without an answer is sent again once before `stallTimeout` ends the task. A gateway bounds its own
        # requests, and a batch may wait there for its turn.
        common["request_timeout"] = timedelta(seconds=options.stall_timeout / 2)
    if kind in _SINKS:
        config: AsyncSinkConfig = getattr(async_sink, _SINKS[kind][1])(**common)
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


class Stall:
    """Counts the seconds in which records are held and nothing happens. Meanwhile the writer logs what it waits for."""

    def __init__(self, seconds: float) -> None:
        self._limit = seconds
        self._since: float | None = None
        self._signs = 0

    def is_over(self, now: float, *, held: int, signs_of_life: int) -> bool:
        """Whether the time is over; `signs_of_life` is a number that grows with each of them."""
        if self._since is None or held == 0 or signs_of_life != self._signs:
            self._since, self._signs = now, signs_of_life
        return now - self._since >= self._limit


class WriteSummary(async_sink.WriteSummary, WriterCommitMessage):
    """What one write task did; the sink's commit message.

    `dead_letters` are the records in `deadLetterPath`; for several tasks, `seconds` is the time of the longest.
    """


def total(messages: Sequence[WriterCommitMessage | None]) -> WriteSummary:
    """The sum of the commit messages of a micro-batch or job; tasks without one count nothing."""
    return WriteSummary.total(one for one in messages if isinstance(one, WriteSummary))


MAX_OPEN_SINKS = 16
"""Writers of a task that are open at the same time; the one that was used longest ago is flushed for the next."""

_log = logging.getLogger(__name__)
_TICKS = 20


@dataclass(slots=True)
class _Open:
    writer: Any
    watching: "asyncio.Task[None] | None" = None
    is_asked: bool = False
    """Whether the task waits for it: then it has work, even if its gauges are 0."""


class SinkTask:
    """Writers by stream, on the event loop of its caller. Raises what a writer raises; then nothing is acknowledged.

    A writer that gets neither an acknowledgement nor a throttle for `stall_seconds` although it has records ends with
    the code WRITE_STALLED: a wrong endpoint must not hold a task for ever. A throttle is a sign of life, and so is what
    the `gateway` that the records go through says of its destination before they have their acknowledgement.
    """

    def __init__(
        self,
        make_sink: Callable[[str], Any],
        *,
        stall_seconds: float,
        gateway: str | None = None,
        max_open: int = MAX_OPEN_SINKS,
    ) -> None:
        self._make_sink = make_sink
        self._stall_seconds = stall_seconds
        self._gateway = gateway
        self._max_open = max_open
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self.written = WriteSummary()
        """By the writers that are closed."""

    async def write(self, stream: str, batch: Any) -> None:
        """Write a record batch to a stream; waits while its writer is full."""
        one = await self._writer(stream)
        await self._unless_over(one, one.writer.write_many(batch))

    async def entries(self, stream: str) -> Any:
        """The entries of a stream's writer, which know the rules of their destination."""
        return (await self._writer(stream)).writer.target.kind

    async def finish(self) -> None:
        """Wait until all writers have their acknowledgements, and close them."""
        await asyncio.gather(*map(self._flush, self._open.values()))
        for stream in list(self._open):
            await self._close(stream)

    async def abandon(self) -> None:
        """Close the writers without flushing."""
        for stream in list(self._open):
            with suppress(Exception):  # the error that led here is the one to tell
                await self._close(stream)

    async def _flush(self, one: _Open) -> None:
        await self._unless_over(one, one.writer.flush(end_of_input=True))

    async def _unless_over(self, one: _Open, work: Coroutine[Any, Any, None]) -> None:
        """Do something with a writer; the watch ends it, should the writer itself not be able to."""
        assert one.watching is not None
        doing = asyncio.create_task(work, name="write")
        one.is_asked = True
        try:
            await asyncio.wait({doing, one.watching}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                await one.watching
            await doing
        finally:
            one.is_asked = False
            doing.cancel()

    async def _writer(self, stream: str) -> _Open:
        found = self._open.get(stream)
        if found is not None:
            self._open.move_to_end(stream)
            return found
        if len(self._open) >= self._max_open:
            oldest, one = next(iter(self._open.items()))
            await self._flush(one)
            await self._close(oldest)
        found = self._open[stream] = _Open(await self._make_sink(stream).create_writer().__aenter__())
        found.watching = asyncio.create_task(self._watch(stream, found), name=f"watch {stream}")
        return found

    async def _close(self, stream: str) -> None:
        one = self._open.pop(stream)
        if one.watching is not None:
            one.watching.cancel()
            await asyncio.wait({one.watching})
        await one.writer.close()
        self.written = WriteSummary.total((self.written, WriteSummary.of(one.writer.metrics)))

    def _stalled(self, stream: str, held: int, last_failure: str) -> SparkPluginError:
        behind, cure = "", "check endpointUrl, region and the network between the executors and it"
        if self._gateway is not None:
            # It reaches the destination by an endpoint of its own.
            behind = f" behind the sink gateway {self._gateway}"
            cure = f"look at what `penstock sink --endpoint {self._gateway}` shows of it, and at the gateway's log"
        return SparkPluginError.of(
            "WRITE_STALLED",
            destination=stream,
            records=held,
            seconds=self._stall_seconds,
            behind=behind,
            last_failure=last_failure or "none",
            cure=cure,
        )

    async def _watch(self, stream: str, one: _Open) -> None:
        loop, writer = asyncio.get_running_loop(), one.writer
        stall = Stall(self._stall_seconds)
        while True:
            metrics, gauges = writer.metrics, writer.gauges()
            held = gauges.buffer_records + gauges.in_flight_messages or int(one.is_asked)
            alive = metrics.records_out + metrics.dead_lettered + metrics.throttled + metrics.signs_of_life
            if stall.is_over(loop.time(), held=held, signs_of_life=alive):
                error = self._stalled(stream, held, metrics.last_failure)
                try:
                    writer.fail(error)
                except Exception:
                    _log.debug("the writer of %s is broken", stream, exc_info=True)
                raise error
            await asyncio.sleep(min(1.0, self._stall_seconds / _TICKS))
