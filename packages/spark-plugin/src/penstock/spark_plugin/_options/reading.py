"""Reading: positions, how records are fetched, and the limits of a micro-batch."""
# ruff: noqa: RUF009  # `option` makes a field

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from penstock.spark_plugin._options.spec import (
    BOOLEAN,
    BYTES,
    DRIVER,
    INTEGER,
    MILLISECONDS,
    OF_EFO,
    POSITION,
    READ,
    READER,
    REGISTRY,
    SECONDS,
    SECONDS_OR_OFF,
    STREAM,
    STRINGS,
    TASK,
    TIME,
    Refusal,
)
from penstock.spark_plugin._options.values import PositionOption, PositionOptionType, option
from penstock.spark_plugin.errors import OptionError

if TYPE_CHECKING:
    from penstock.efo_consumer import Deaggregation
    from penstock.spark_plugin._options.kinesis_options import KinesisOptions

_batches = partial(option, acts=(DRIVER,), only=(STREAM,))


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """Options of reading."""

    initial_position: PositionOption | None = option(
        POSITION,
        otherwise="LATEST (streams), TRIM_HORIZON (bounded reads)",
        acts=(DRIVER,),
        flink="flink.stream.initpos",
        databricks="initialPosition",
        aws="kinesis.startingPosition",
    )
    """Where a new query, or a bounded read, begins: LATEST, TRIM_HORIZON, `AT_TIMESTAMP <time>`, or one of
    these for each stream: `{"flights": "TRIM_HORIZON", "trains": "2026-01-31T00:00:00Z"}`; or by shard, then
    also after a sequence number: `{"shardId-000000000000": "4959…"}`, of several streams `{"<stream>":
    {"<shard>": "4959…"}}`. There -2 and -1 are TRIM_HORIZON and LATEST, as in Kafka's offsets, and objects with
    `iteratorType` are taken from the AWS connector's checkpoints. LATEST is a time by the service's clock:
    records of the two seconds before the query began may be included. A time before the stream's retention is
    TRIM_HORIZON. A path is the seam of a bounded read: see `endingPosition`."""
    initial_timestamp: datetime | None = option(TIME, acts=(DRIVER,), flink="flink.stream.initpos.timestamp")
    """The time, where `initialPosition` is a bare AT_TIMESTAMP."""
    initial_timestamp_format: str | None = option(
        requires=("initialTimestamp", "says how it is written"),
        acts=(DRIVER,),
        flink="flink.stream.initpos.timestamp.format",
    )
    """How `initialTimestamp` is written, as a date pattern of Java: `yyyy-MM-dd'T'HH:mm:ss`. A number that does
    not fit it is seconds or milliseconds since 1970."""
    ending_position: PositionOption | None = option(POSITION, acts=(DRIVER,), only=(READ,))
    """Where a bounded read ends: now (or LATEST; the default), before a time, or with sequence numbers or an
    offset of a checkpoint; then nothing is read of shards that are neither named nor parents of these. Now is
    by the service's clock, and includes every record that was acknowledged before the read was planned. The
    read waits for an end in the future, which is at most a year ahead. The path of a file on the driver's file
    system, or `s3://BUCKET/KEY` (at S3's own endpoint, with the credentials and the region of the read), is a
    seam: it holds the time at which it was first asked for. A bounded read ends there, and a stream that has it
    as `initialPosition` begins there."""
    shard_ids: tuple[str, ...] = option(STRINGS, acts=(DRIVER,), only=(READ,))
    """The shards that a bounded read takes, with commas; of several streams those of any. Default: all."""
    added_stream_position: PositionOption | None = _batches(
        POSITION, otherwise="initialPosition; TRIM_HORIZON with streamNamePattern"
    )
    """Where streams begin that the query's checkpoint does not know: LATEST, TRIM_HORIZON or a time."""
    record_publisher: str = option(
        default="polling",
        acts=(DRIVER, READER),
        only=(STREAM,),
        elsewhere="polling",
        choices=("efo", "polling"),
        choice_aliases=(("subscribetoshard", "efo"), ("getrecords", "polling")),
        flink="flink.stream.recordpublisher",
        databricks="consumerMode",
        aws="kinesis.consumerType",
    )
    """How records are fetched: enhanced fan-out (pushed, a dedicated 2 MiB/s per shard) or GetRecords."""
    efo_registration: str = option(
        default="lazy",
        acts=(DRIVER, REGISTRY),
        refused_with=(replace(OF_EFO, unless="none"),),
        only=(STREAM,),
        choices=("lazy", "eager", "none"),
        flink="flink.stream.efo.registration",
    )
    """When the consumer is registered: as the query starts, as the DataFrame is made, or never."""
    efo_consumer_name: str | None = option(
        otherwise="penstock-, or efoConsumerNamePrefix, and an id from the query's checkpoint",
        acts=(REGISTRY,),
        refused_with=(OF_EFO,),
        flink="flink.stream.efo.consumername",
        databricks="consumerName",
        aws="kinesis.consumerName",
    )
    """Name of the stream consumer with efo; each query has its own. The default stays the same over restarts,
    and stands in `lastProgress`. Required with `efoRegistration=eager`, which comes before the checkpoint."""
    efo_consumer_name_prefix: str | None = option(
        acts=(REGISTRY,), refused_with=(OF_EFO,), databricks="consumerNamePrefix"
    )
    """Put before `efoConsumerName`, or before the id that is its default. Databricks' own default is
    `databricks_`."""
    efo_consumer_arn: Mapping[str, str] = option(
        acts=(REGISTRY, READER), refused_with=(OF_EFO,), prefix=True, flink="flink.stream.efo.consumerarn"
    )
    """`efoConsumerArn.<stream>`: ARN of the consumer to use, with `efoRegistration=none`; of another account's
    stream with that one's `streamArn`."""
    subscribe_transport: str = option(
        default="auto", acts=(READER,), refused_with=(OF_EFO,), choices=("auto", "http2", "http1")
    )
    """Transport of SubscribeToShard; auto is HTTP/2 where the endpoint has TLS."""
    get_records_max_records: int = option(
        INTEGER, "10000", acts=(TASK, READER), minimum=1, maximum=10_000, flink="flink.shard.getrecords.maxrecordcount"
    )
    """Records that one GetRecords asks for."""
    get_records_interval: float = option(
        MILLISECONDS, "200", acts=(TASK, READER), minimum=200, flink="flink.shard.getrecords.intervalmillis"
    )
    """Time between two GetRecords on a shard, which allows 5 a second to all of its readers together."""
    shard_discovery_interval: float = option(SECONDS, "10s", acts=(READER,), minimum=0.1)
    """Wait before a closed shard's children are looked for again."""
    fail_on_data_loss: bool = option(BOOLEAN, "true", acts=(DRIVER, TASK, READER), aws="kinesis.failOnDataLoss")
    """Whether a range that the stream no longer holds, or a stream that was deleted, fails the query."""
    retry_patience: float = option(SECONDS, "10m", acts=(DRIVER, TASK, READER), minimum=0)
    """How long reading retries errors that may pass: an endpoint that fails or does not answer, throttling,
    credentials that cannot be refreshed. It begins with the first error since the last success; 0 is for ever.
    `getRecordsMaxRetries` and `subscribeToShardMaxRetries`, once given, decide instead."""
    columns: str = option(default="penstock", acts=(DRIVER, TASK), choices=("penstock", "databricks", "aws"))
    """The columns by the names and in the order of this package, of Databricks, or of the AWS connector."""
    include_encryption_type: bool = option(BOOLEAN, "false", acts=(DRIVER, TASK))
    """Adds the columns `encryptionType` and `explicitHashKey`."""
    deaggregate: "Deaggregation" = option(
        BOOLEAN,
        "true",
        acts=(TASK, READER),
        refused_with=(Refusal("readerEndpoint", "start the shard reader with --deaggregate, for all of its callers"),),
        choices=("all",),
    )
    """Whether aggregates of the Kinesis Producer Library are given as the user records that they hold. `true`
    drops a user record whose key belongs to the other shard of a split, because a producer with an old list of
    shards sends it there again. `all` drops none: set it where producers pack user records without regard to
    shards, as `aws-kinesis-agg` and `async-kinesis` do. Reader services have a setting of their own."""
    min_partitions: int | None = option(INTEGER, at_most="maxPartitions", acts=(DRIVER,), minimum=1, maximum=10000)
    """Fewest partitions, where there are records for them. Shards are divided for it: then a shard's records
    are in order within each partition, and from one partition to the next."""
    max_partitions: int | None = option(
        INTEGER, otherwise="half of the cores, at most 8", acts=(DRIVER,), minimum=1, databricks="maxPartitions"
    )
    """Most partitions of a micro-batch; each costs it 2 to 20 ms, so there are no more than one for 64 KiB."""
    max_records_per_batch: int | None = _batches(INTEGER, minimum=1)
    """Most records of a micro-batch."""
    max_records_per_shard_per_batch: int | None = _batches(INTEGER, minimum=1)
    """Most records of one shard in a micro-batch."""
    max_shard_skew: float | None = _batches(SECONDS_OR_OFF, "1m", minimum=0)
    """How far ahead of the slowest shard a micro-batch may go. A record waits for a later micro-batch if it
    arrived more than this after the time up to which the slowest shard was read, so a watermark with a longer
    delay drops no record. A shard that makes no progress for a minute (for `retryPatience`, if that is shorter)
    is left behind, with a warning. `off` gives each micro-batch everything that was read."""
    min_records_per_batch: int | None = _batches(INTEGER, at_most="maxRecordsPerBatch", minimum=1)
    """Fewest records of a micro-batch: with fewer the query waits, at most `maxTriggerDelay`, and not where its
    buffers are full or `maxBytesPerBatch` holds no more. Runs that end by themselves do not wait."""
    max_trigger_delay: float | None = _batches(
        SECONDS, requires=("minRecordsPerBatch", "is how long a query waits for so many"), otherwise="15m", minimum=0.01
    )
    """How long the first record waits for a micro-batch of `minRecordsPerBatch`."""
    max_bytes_per_batch: int | None = _batches(BYTES, minimum=1)
    """Most bytes (data and partition keys) of a micro-batch."""
    buffer_bytes: int = option(
        BYTES,
        "128m",
        acts=(READER,),
        refused_with=(
            Refusal("readerEndpoint", "all sessions of a shard reader share its buffers: start it with --buffer-bytes"),
        ),
        minimum=1,
        maximum=1 << 38,
        databricks="fetchBufferSize",
    )
    """Bytes that the reader buffers in all. Each shard may exceed it: by an event with enhanced fan-out, by 64
    KiB or one record without."""
    buffer_bytes_per_shard: int = option(
        BYTES,
        "8m",
        at_most="bufferBytes",
        acts=(READER,),
        refused_with=(Refusal("readerEndpoint", "start the shard reader with --buffer-bytes-per-shard"),),
        minimum=1,
    )
    """Bytes that the reader buffers of one shard; one event, or one answer to GetRecords, may exceed it."""
    latest_offset_wait: float = _batches(SECONDS, "500ms", minimum=0.01)
    """How long an idle query waits for records before it looks at its other work. A query that begins waits for
    up to 10 s until each shard has answered: `processAllAvailable()` ends with the first micro-batch without
    records."""
    idle_offset_interval: float = option(SECONDS, "5m", acts=(READER,), minimum=1)
    """An idle stream's position goes to the checkpoint at most this often, by an empty micro-batch. While the
    position stays the same, it is confirmed at most every hour: that proves later that nothing was lost."""


_subscribing = partial(option, acts=(READER,), refused_with=(OF_EFO,))
_polling = partial(option, acts=(TASK, READER))


@dataclass(frozen=True, kw_only=True)
class RetryOptions:
    """Options of calls that are repeated."""

    subscribe_to_shard_timeout: float = _subscribing(
        SECONDS,
        "10s",
        minimum=0.1,
        flink="flink.shard.subscribetoshard.timeout",
        aws="kinesis.subscribeToShard.timeoutSec",
    )
    """How long connecting for SubscribeToShard, and its answer, may take before it is tried again."""
    subscribe_to_shard_max_retries: int | None = _subscribing(
        INTEGER, minimum=0, flink="flink.shard.subscribetoshard.maxretries"
    )
    """Attempts of SubscribeToShard after a recoverable error. When given, it decides instead of `retryPatience`, and
    counts what Flink counts."""
    subscribe_to_shard_backoff_base: float = _subscribing(
        MILLISECONDS,
        "1000",
        at_most="subscribeToShardBackoffMax",
        minimum=0,
        flink="flink.shard.subscribetoshard.backoff.base",
    )
    """First delay between attempts of SubscribeToShard."""
    subscribe_to_shard_backoff_max: float = _subscribing(
        MILLISECONDS, "2000", minimum=0, flink="flink.shard.subscribetoshard.backoff.max"
    )
    """Longest delay between attempts of SubscribeToShard."""
    get_records_max_retries: int | None = _polling(INTEGER, minimum=0, flink="flink.shard.getrecords.maxretries")
    """Attempts of GetRecords, and of GetShardIterator, after a recoverable error. When given, it decides instead of
    `retryPatience`, and counts what Flink counts."""
    get_records_backoff_base: float = _polling(
        MILLISECONDS, "300", at_most="getRecordsBackoffMax", minimum=0, flink="flink.shard.getrecords.backoff.base"
    )
    """First delay between attempts of GetRecords and GetShardIterator."""
    get_records_backoff_max: float = _polling(
        MILLISECONDS, "1000", minimum=0, flink="flink.shard.getrecords.backoff.max"
    )
    """Longest delay between attempts of GetRecords and GetShardIterator."""


_CONSUMER_ARN = re.compile(
    r"(?P<arn>arn:[^:]+:kinesis:(?P<region>[^:]*):\d{12}:stream/(?P<stream>[\w.-]+))"
    r"/consumer/(?P<name>[\w.-]{1,128}):\d+",
    re.ASCII,
)
_CONSUMER_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
_SHORTEST_MILLIS = 10.0
_QUERY_LENGTH = 32
"""Of the name of a query in its checkpoint."""


def check_efo(options: "KinesisOptions") -> None:
    """Check that enhanced fan-out has a consumer, which is one of the stream.

    Raises:
        OptionError: an option is missing or contradicts another one; the error names it.
    """
    arns = dict(options.efo_consumer_arn)
    if options.record_publisher != "efo":
        return
    if options.efo_registration == "none":
        for stream in options.stream_name:
            if stream not in arns:
                raise OptionError.missing(f"efoConsumerArn.{stream}", "$efoRegistration is none")
            # Kinesis is asked for a consumer and a shard: the records would be another stream's, and nobody would tell.
            consumer = _CONSUMER_ARN.fullmatch(arns[stream])
            if consumer is None or consumer["stream"] != stream:
                raise OptionError.invalid(
                    f"efoConsumerArn.{stream}", arns[stream], f"the ARN of a consumer of stream {stream}"
                )
            # A stream of that name in another account or region is another one.
            if options.arn_of(stream) not in (None, consumer["arn"]):
                raise OptionError.contradictory(
                    "streamArn",
                    f"efoConsumerArn.{stream}",
                    f"the consumer is one of {consumer['arn']}: give that as $streamArn, or another consumer",
                )
            if options.region not in (None, consumer["region"]):
                raise OptionError.contradictory(
                    "region",
                    f"efoConsumerArn.{stream}",
                    f"the consumer is in {consumer['region']}, not in {options.region}",
                )
            if options.efo_consumer_name not in (None, consumer["name"]):
                raise OptionError.contradictory(
                    "efoConsumerName", f"efoConsumerArn.{stream}", f"the ARN is that of consumer {consumer['name']}"
                )
    elif arns:
        raise OptionError.contradictory(
            "efoConsumerArn", "efoRegistration", "ARNs are given with $efoRegistration=none alone"
        )
    elif options.efo_consumer_name is None and options.efo_registration == "eager":
        raise OptionError.missing(
            "efoConsumerName",
            "$efoRegistration is eager, which registers before there is a checkpoint to make a name of; give a name "
            "that no other query has on these streams, and that stays the same over restarts, or $efoRegistration=lazy",
        )
    elif _CONSUMER_NAME.fullmatch(options.consumer_name("0" * _QUERY_LENGTH)) is None:
        given = "efoConsumerName" if options.efo_consumer_name is not None else "efoConsumerNamePrefix"
        rule = "1 to 128 letters, digits, _ . and -, with its prefix"
        if options.efo_consumer_name is None:
            rule = f"letters, digits, _ . and -, at most {128 - _QUERY_LENGTH} before a name of the checkpoint's"
        raise OptionError.invalid(given, options.efo_consumer_name or options.efo_consumer_name_prefix or "", rule)


def check_reading(options: "KinesisOptions") -> None:
    """Check the positions, the limits of a micro-batch, and the pauses between attempts.

    Raises:
        OptionError: a position is incomplete, or is one of another stream; or two options contradict each other.
    """
    position, ending = options.initial_position, options.ending_position
    if position is not None and position.type is PositionOptionType.AT_TIMESTAMP and position.timestamp is None:
        raise OptionError.missing("initialTimestamp", "$initialPosition is AT_TIMESTAMP without a time")
    if ending is not None and ending.type is PositionOptionType.AT_TIMESTAMP and ending.timestamp is None:
        raise OptionError.invalid("endingPosition", "AT_TIMESTAMP", "with its time")
    if ending is not None and ending.type is PositionOptionType.TRIM_HORIZON:
        reason = "now (or LATEST), a time, or sequence numbers as JSON: nothing comes before TRIM_HORIZON"
        raise OptionError.invalid("endingPosition", "TRIM_HORIZON", reason)
    for name, one in (("initialPosition", position), ("endingPosition", ending)):
        _check_streams(name, one, options)
    if options.columns != "penstock" and options.include_encryption_type:
        raise OptionError.contradictory("columns", "includeEncryptionType", f"{options.columns} has no such column")
    if options.min_records_per_batch is not None and options.max_records_per_shard_per_batch is not None:
        raise OptionError.contradictory(
            "minRecordsPerBatch",
            "maxRecordsPerShardPerBatch",
            "how many shards have records is not known beforehand: bound micro-batches by $maxRecordsPerBatch",
        )
    for call, longest, retries in (
        ("subscribeToShard", options.subscribe_to_shard_backoff_max, options.subscribe_to_shard_max_retries),
        ("getRecords", options.get_records_backoff_max, options.get_records_max_retries),
    ):
        if longest < _SHORTEST_MILLIS and retries is None:
            raise OptionError.contradictory(
                f"{call}BackoffMax",
                f"{call}MaxRetries",
                f"without a number of attempts, delays of at most {longest:g} ms would call AWS without a pause for as "
                f"long as $retryPatience says: give {_SHORTEST_MILLIS:g} ms or more, or ${call}MaxRetries",
            )


def _check_streams(name: str, position: PositionOption | None, options: "KinesisOptions") -> None:
    if position is None or position.streams is None:
        return
    named, streams = set(position.streams), set(options.stream_name)
    if named == streams or (named == {""} and len(streams) == 1):
        return
    if options.stream_name_pattern is not None:
        raise OptionError.contradictory(
            name,
            "streamNamePattern",
            "which streams match is known when the query runs: give one position for all, or name the streams in "
            "$streamName",
        )
    rule = "a position for each stream in $streamName and no other, such as "
    rule += json.dumps(dict.fromkeys(sorted(streams), "TRIM_HORIZON")) + "; "
    if named == {""}:
        raise OptionError.invalid(name, "shards without their streams", f"{rule}shards stand below their stream's name")
    wrong = [f"{one} is missing" for one in sorted(streams - named)]
    wrong += [f"{one or 'a stream without a name'} is not read" for one in sorted(named - streams)]
    raise OptionError.invalid(name, ", ".join(sorted(named)), rule + ", ".join(wrong))
