"""Reading: positions, how records are fetched, the limits of a micro-batch, and the rows."""
# ruff: noqa: RUF009  # `option` makes a field

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from penstock.spark_plugin._options.values import PositionOption, PositionOptionType, option
from penstock.spark_plugin.errors import OptionError

if TYPE_CHECKING:
    from penstock.efo_consumer import Deaggregation
    from penstock.spark_plugin._options.kinesis_options import KinesisOptions


@dataclass(frozen=True, kw_only=True)
class PositionOptions:
    """Options that say where reading begins and ends."""

    initial_position: PositionOption | None = option(
        "position", otherwise="LATEST (streams), TRIM_HORIZON (bounded reads)", acts="driver"
    )
    """Where a new query, or a bounded read, begins: LATEST, TRIM_HORIZON or `AT_TIMESTAMP <time>`. A JSON object gives
    each stream its own position: `{"flights": "TRIM_HORIZON", "trains": "2026-01-31T00:00:00Z"}`; or each shard, then
    also after a sequence number: `{"shardId-000000000000": "4959…"}`, or with several streams `{"<stream>":
    {"<shard>": "4959…"}}`. In JSON, -2 and -1 are TRIM_HORIZON and LATEST, as in Kafka's offsets, and objects with
    `iteratorType` are accepted from checkpoints of the AWS connector. LATEST is a time by the service's clock:
    records of the two seconds before the query began may be included. A time before the stream's retention is
    TRIM_HORIZON. A path is the seam of a bounded read: see `endingPosition`."""
    initial_timestamp: datetime | None = option("time", acts="driver")
    """The time, when `initialPosition` is AT_TIMESTAMP without one."""
    ending_position: PositionOption | None = option("position", acts="driver", only="read")
    """Where a bounded read ends: now (or LATEST; the default), before a time, or with sequence numbers or an
    offset of a checkpoint; then only the shards that are named, and their parents, are read. Now is by the service's
    clock, and includes every record that was acknowledged before the read was planned. The read waits for an end in
    the future, which is at most a year ahead. The path of a file on the driver's file system, or `s3://BUCKET/KEY`
    (at S3's own endpoint, with the credentials and the region of the read), is a seam: it holds the time at which it
    was first used. A bounded read ends there, and a stream that has it as `initialPosition` begins there."""
    shard_ids: tuple[str, ...] = option("strings", acts="driver", only="read")
    """The shards that a bounded read takes, separated by commas; with several streams, the shards of any of them.
    Default: all."""
    added_stream_position: PositionOption | None = option(
        "position",
        otherwise="initialPosition; TRIM_HORIZON with streamNamePattern",
        acts="driver",
        only="stream",
    )
    """Where streams begin that the query's checkpoint does not contain: LATEST, TRIM_HORIZON or a time."""


_efo = partial(option, needs="recordPublisher=efo")


@dataclass(frozen=True, kw_only=True)
class FetchingOptions:
    """Options of how records are fetched."""

    record_publisher: str = option(
        default="polling", acts="driver reader", only="stream", harmless="polling", choices=("efo", "polling")
    )
    """How records are fetched: enhanced fan-out (pushed, a dedicated 2 MiB/s per shard) or GetRecords."""
    efo_consumer_name: str | None = _efo(
        otherwise="penstock-, or efoConsumerNamePrefix, and an id from the query's checkpoint", acts="registry"
    )
    """Name of the stream consumer with efo; each query has its own. The default stays the same over restarts,
    and is shown in `lastProgress`. Required with `efoRegistration=eager`, which runs before there is a checkpoint."""
    fail_on_data_loss: bool = option("boolean", "true", acts="driver task reader")
    """Whether a range that the stream no longer holds, or a stream that was deleted, fails the query."""
    retry_patience: float = option("seconds", "10m", acts="driver task reader", minimum=0)
    """How long reading retries errors that may pass: an endpoint that fails or does not answer, throttling,
    credentials that cannot be refreshed. It begins with the first error since the last success; 0 is for ever.
    `getRecordsMaxRetries` and `subscribeToShardMaxRetries`, once given, decide instead."""
    efo_registration: str = _efo(
        default="lazy",
        acts="driver registry",
        only="stream",
        harmless="none",
        choices=("lazy", "eager", "none"),
    )
    """When the consumer is registered: when the query starts, when the DataFrame is made, or never."""
    efo_consumer_name_prefix: str | None = _efo(acts="registry")
    """Put before `efoConsumerName`, or before the id that is its default. The default of Databricks is
    `databricks_`."""
    efo_consumer_arn: Mapping[str, str] = _efo(acts="registry reader", prefix=True)
    """`efoConsumerArn.<stream>`: ARN of the consumer to use, with `efoRegistration=none`. For a stream of another
    account, give `streamArn` too."""
    subscribe_transport: str = _efo(default="auto", acts="reader", choices=("auto", "http2", "http1"))
    """Transport of SubscribeToShard; auto is HTTP/2 if the endpoint has TLS."""
    get_records_max_records: int = option("integer", "10000", acts="task reader", minimum=1, maximum=10_000)
    """Most records of one GetRecords call."""
    get_records_interval: float = option("milliseconds", "200", acts="task reader", minimum=200)
    """Time between two GetRecords calls on a shard, which allows 5 a second to all of its readers together."""
    shard_discovery_interval: float = option("seconds", "10s", acts="reader", minimum=0.1)
    """Time between two attempts to find the children of a closed shard."""
    buffer_bytes: int = option(
        "bytes",
        "128m",
        acts="reader",
        not_with={"readerEndpoint": "all sessions of a shard reader share its buffers: start it with --buffer-bytes"},
        minimum=1,
        maximum=1 << 38,
    )
    """Bytes that the reader buffers in all. Each shard may exceed it: by one event with enhanced fan-out, by 64
    KiB or one record without."""
    buffer_bytes_per_shard: int = option(
        "bytes",
        "8m",
        acts="reader",
        not_with={"readerEndpoint": "start the shard reader with --buffer-bytes-per-shard"},
        at_most="bufferBytes",
        minimum=1,
    )
    """Bytes that the reader buffers of one shard; one event, or one answer to GetRecords, may exceed it."""
    idle_offset_interval: float = option("seconds", "5m", acts="reader", minimum=1)
    """An idle stream's position is written to the checkpoint at most this often, by an empty micro-batch. While the
    position stays the same, it is confirmed at most every hour, to prove later that no record was lost."""


_batches = partial(option, acts="driver", only="stream")


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Limits of a micro-batch."""

    max_records_per_batch: int | None = _batches("integer", minimum=1)
    """Most records of a micro-batch."""
    max_bytes_per_batch: int | None = _batches("bytes", minimum=1)
    """Most bytes (data and partition keys) of a micro-batch."""
    max_records_per_shard_per_batch: int | None = _batches("integer", minimum=1)
    """Most records of one shard in a micro-batch."""
    max_shard_skew: float | None = _batches("seconds_or_off", "1m", minimum=0)
    """How far ahead of the slowest shard a micro-batch may read. A record waits for a later micro-batch if it
    arrived more than this after the time up to which the slowest shard was read, so a watermark with a longer
    delay drops no record. A shard that makes no progress for a minute (or for `retryPatience`, if that is shorter)
    is left behind, with a warning. `off` gives each micro-batch everything that was read."""
    min_records_per_batch: int | None = _batches(
        "integer",
        at_most="maxRecordsPerBatch",
        minimum=1,
        not_with={"maxRecordsPerShardPerBatch": "how many shards have records is not known: give $maxRecordsPerBatch"},
    )
    """Fewest records of a micro-batch. The query waits for them at most `maxTriggerDelay`, and not if its buffers are
    full or `maxBytesPerBatch` is reached. Runs that end on their own do not wait."""
    max_trigger_delay: float | None = _batches("seconds", needs="minRecordsPerBatch", otherwise="15m", minimum=0.01)
    """How long the first record waits for a micro-batch of `minRecordsPerBatch`."""
    max_partitions: int | None = option("integer", otherwise="half of the cores, at most 8", acts="driver", minimum=1)
    """Most partitions of a micro-batch; each costs it 2 to 20 ms, so there is at most one for 64 KiB."""
    min_partitions: int | None = option("integer", at_most="maxPartitions", acts="driver", minimum=1, maximum=10000)
    """Fewest partitions, if there are records for them. Shards are divided for it: then a shard's records
    are in order within each partition, and from one partition to the next."""
    latest_offset_wait: float = _batches("seconds", "500ms", minimum=0.01)
    """How long an idle query waits for records before it does its other work. A query that begins waits for
    up to 10 s until each shard has answered: `processAllAvailable()` ends with the first micro-batch without
    records."""


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Options of the rows that are read."""

    columns: str = option(default="penstock", acts="driver task", choices=("penstock", "databricks", "aws"))
    """The columns by the names and in the order of this package, of Databricks, or of the AWS connector."""
    include_encryption_type: bool = option("boolean", "false", acts="driver task")
    """Adds the columns `encryptionType` and `explicitHashKey`."""
    deaggregate: "Deaggregation" = option(
        "boolean",
        "true",
        acts="task reader",
        not_with={"readerEndpoint": "start the shard reader with --deaggregate, for all of its callers"},
        choices=("all",),
    )
    """Whether aggregates of the Kinesis Producer Library are split into the user records that they hold. `true`
    drops a user record whose key belongs to the other shard of a split, because a producer with an old list of
    shards sends it there again. `all` drops none: set it if producers pack user records without regard to
    shards, as `aws-kinesis-agg` and `async-kinesis` do. Reader services have a setting of their own."""


_subscribing = partial(_efo, acts="reader")
_polling = partial(option, acts="task reader")


@dataclass(frozen=True, kw_only=True)
class RetryOptions:
    """Options of calls that are repeated."""

    get_records_max_retries: int | None = _polling("integer", minimum=0)
    """Attempts of GetRecords, and of GetShardIterator, after a recoverable error. When given, it decides instead of
    `retryPatience`, and counts what Flink counts."""
    get_records_backoff_base: float = _polling("milliseconds", "300", at_most="getRecordsBackoffMax", minimum=0)
    """First delay between attempts of GetRecords and GetShardIterator."""
    get_records_backoff_max: float = _polling("milliseconds", "1000", minimum=0)
    """Longest delay between attempts of GetRecords and GetShardIterator."""
    subscribe_to_shard_timeout: float = _subscribing("seconds", "10s", minimum=0.1)
    """How long connecting for SubscribeToShard, and its answer, may take before it is tried again."""
    subscribe_to_shard_max_retries: int | None = _subscribing("integer", minimum=0)
    """Attempts of SubscribeToShard after a recoverable error. When given, it decides instead of `retryPatience`, and
    counts what Flink counts."""
    subscribe_to_shard_backoff_base: float = _subscribing(
        "milliseconds", "1000", at_most="subscribeToShardBackoffMax", minimum=0
    )
    """First delay between attempts of SubscribeToShard."""
    subscribe_to_shard_backoff_max: float = _subscribing("milliseconds", "2000", minimum=0)
    """Longest delay between attempts of SubscribeToShard."""


_CONSUMER_ARN = re.compile(
    r"(?P<arn>arn:[^:]+:kinesis:(?P<region>[^:]*):\d{12}:stream/(?P<stream>[\w.-]+))"
    r"/consumer/(?P<name>[\w.-]{1,128}):\d+",
    re.ASCII,
)
_CONSUMER_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
_SHORTEST_MILLIS = 10.0
_QUERY_LENGTH = 32
"""Length of the name of a query in its checkpoint."""


def check_efo(options: "KinesisOptions") -> None:
    """Check that enhanced fan-out has a consumer, which belongs to the stream.

    Raises:
        OptionError: an option is missing or contradicts another one; the error names it.
    """
    if options.record_publisher != "efo":
        return
    if options.efo_registration == "none":
        for stream in options.stream_name:
            _check_consumer(options, stream)
    elif options.efo_consumer_arn:
        reason = "ARNs are given with $efoRegistration=none alone"
        raise OptionError.contradictory("efoConsumerArn", "efoRegistration", reason)
    elif options.efo_consumer_name is None and options.efo_registration == "eager":
        reason = (
            "$efoRegistration is eager, which registers before there is a checkpoint to take a name from; give a name "
            "that no other query has on these streams, and that stays the same over restarts, or $efoRegistration=lazy"
        )
        raise OptionError.missing("efoConsumerName", reason)
    elif _CONSUMER_NAME.fullmatch(options.consumer_name("0" * _QUERY_LENGTH)) is None:
        given = "efoConsumerName" if options.efo_consumer_name is not None else "efoConsumerNamePrefix"
        rule = "1 to 128 letters, digits, _ . and -, with its prefix"
        if options.efo_consumer_name is None:
            rule = f"letters, digits, _ . and -, at most {128 - _QUERY_LENGTH} before the id from the checkpoint"
        raise OptionError.invalid(given, options.efo_consumer_name or options.efo_consumer_name_prefix or "", rule)


def _check_consumer(options: "KinesisOptions", stream: str) -> None:
    """Check that a consumer's ARN is for the stream: Kinesis would return the records of another one."""
    option_name, arn = f"efoConsumerArn.{stream}", options.efo_consumer_arn.get(stream)
    if arn is None:
        raise OptionError.missing(option_name, "$efoRegistration=none needs it")
    consumer = _CONSUMER_ARN.fullmatch(arn)
    if consumer is None or consumer["stream"] != stream:
        raise OptionError.invalid(option_name, arn, f"the ARN of a consumer of stream {stream}")
    # A stream with this name in another account or region is a different stream.
    for other, given, part in (
        ("streamArn", options.arn_of(stream), "arn"),
        ("region", options.region, "region"),
        ("efoConsumerName", options.efo_consumer_name, "name"),
    ):
        if given not in (None, consumer[part]):
            reason = f"the consumer's ARN says {consumer[part]}, and ${other} is {given}"
            raise OptionError.contradictory(other, option_name, reason)


def check_reading(options: "KinesisOptions") -> None:
    """Check the positions, the limits of a micro-batch, and the pauses between attempts.

    Raises:
        OptionError: a position is incomplete, or belongs to another stream; or two options contradict each other.
    """
    position, ending = options.initial_position, options.ending_position
    if position is not None and position.lacks_time:
        raise OptionError.missing("initialTimestamp", "$initialPosition is AT_TIMESTAMP without a time")
    if ending is not None and (ending.lacks_time or ending.type is PositionOptionType.TRIM_HORIZON):
        reason = "now (or LATEST), a time, or sequence numbers as JSON: nothing comes before TRIM_HORIZON"
        raise OptionError.invalid("endingPosition", ending.type.value, reason)
    for name, one in (("initialPosition", position), ("endingPosition", ending)):
        _check_streams(name, one, options)
    if options.columns != "penstock" and options.include_encryption_type:
        raise OptionError.contradictory("columns", "includeEncryptionType", f"{options.columns} has no such column")
    for call, longest, retries in (
        ("subscribeToShard", options.subscribe_to_shard_backoff_max, options.subscribe_to_shard_max_retries),
        ("getRecords", options.get_records_backoff_max, options.get_records_max_retries),
    ):
        if longest < _SHORTEST_MILLIS and retries is None:
            reason = (
                f"without a number of attempts, delays of at most {longest:g} ms would call AWS without a pause for as "
                f"long as $retryPatience says: give {_SHORTEST_MILLIS:g} ms or more, or ${call}MaxRetries"
            )
            raise OptionError.contradictory(f"{call}BackoffMax", f"{call}MaxRetries", reason)


def _check_streams(name: str, position: PositionOption | None, options: "KinesisOptions") -> None:
    if position is None or position.streams is None:
        return
    named, streams = set(position.streams), set(options.stream_name)
    if named == streams or (named == {""} and len(streams) == 1):
        return
    if options.stream_name_pattern is not None:
        reason = "the streams that match are found by the run: give one position for all, or name them in $streamName"
        raise OptionError.contradictory(name, "streamNamePattern", reason)
    rule = "a position for each stream in $streamName and no other, such as "
    rule += json.dumps(dict.fromkeys(sorted(streams), "TRIM_HORIZON")) + "; "
    if named == {""}:
        rule += "put shards below the name of their stream"
        raise OptionError.invalid(name, "shards without their streams", rule)
    wrong = [f"{one} is missing" for one in sorted(streams - named)]
    wrong += [f"{one or 'a stream without a name'} is not read" for one in sorted(named - streams)]
    raise OptionError.invalid(name, ", ".join(sorted(named)), rule + ", ".join(wrong))
