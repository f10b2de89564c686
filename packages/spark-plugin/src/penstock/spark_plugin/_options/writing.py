"""Writing: what becomes a record, and how many are sent at a time."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.spark_plugin._options.spec import (
    BOOLEAN,
    BYTES,
    DRIVER,
    GATEWAY_DECIDES,
    GATEWAY_RATES,
    INTEGER,
    MILLISECONDS,
    NUMBER,
    SECONDS,
    STRINGS,
    TASK,
    TEXT,
    Refusal,
)
from penstock.spark_plugin._options.values import option
from penstock.spark_plugin.errors import OptionError

if TYPE_CHECKING:
    from penstock.spark_plugin._options.kinesis_options import KinesisOptions

_DELIMITER = (r'[^"\r\n]', "one character, no quote and no line break")
_NOT_EMPTY = (r"(?s:.+)", "a text that is not empty; leave it out for none")
_NO_OTHER_ATTEMPT = Refusal(
    "failOnError", "the first record that Kinesis refuses fails the task, without another attempt"
)

_written = partial(option, acts=(DRIVER, TASK))
_rate = partial(option, acts=(TASK,), refused_with=(GATEWAY_RATES,))


@dataclass(frozen=True, kw_only=True)
class WritingOptions:
    """Options of writing."""

    partition_key_column: str = _written(default="partitionKey")
    """Column with the partition key."""
    random_partition_key: bool = _written(BOOLEAN, "false")
    """Gives each record a random partition key; there is no key column then."""
    value_format: str | None = _written(choices=("json", "avro", "csv", "protobuf"))
    """Makes the data of all columns, instead of taking a column `data`. avro and protobuf need the extras of
    their names, protobuf a `schemaRegistry` too."""
    value_columns: tuple[str, ...] = _written(
        STRINGS, requires=("valueFormat", "are the columns that it makes the data of")
    )
    """Columns of the value, in this order. Default: all but `partitionKey`, `explicitHashKey` and the stream's."""
    csv_delimiter: str = _written(TEXT, ",", pattern=_DELIMITER)
    """Between the columns of valueFormat csv."""
    schema_registry: str | None = option(
        requires=("valueFormat", "has the schema of what it makes: avro, json or protobuf"), acts=(DRIVER,)
    )
    """Registry of the AWS Glue Schema Registry (`default-registry` is every account's) that has the schema of
    valueFormat avro, json or protobuf: records get its header. json needs the extra `json-schema`."""
    schema_name: str | None = option(requires=("schemaRegistry", "belongs to it"), acts=(DRIVER,))
    """Name of the schema in `schemaRegistry`. Default: the name of the stream."""
    schema_version: int | None = option(
        INTEGER, requires=("schemaRegistry", "belongs to it"), acts=(DRIVER,), minimum=1
    )
    """Number of the registered version that is written. Default: the latest, at each write and micro-batch."""
    schema_message: str | None = _written(requires=("schemaRegistry", "belongs to it"))
    """Protobuf message that rows become, where the schema has several."""
    schema_auto_register: bool = option(BOOLEAN, "false", requires=("schemaRegistry", "belongs to it"), acts=(DRIVER,))
    """Writes the schema that the columns make, avro or json, and registers it, as a new version or a new
    schema, where it is not there."""
    schema_compatibility: str = option(
        requires=("schemaAutoRegister", "is that of the schema that it makes"),
        default="backward",
        acts=(DRIVER,),
        choices=("backward", "backward_all", "forward", "forward_all", "full", "full_all", "none", "disabled"),
    )
    """What versions of a schema that `schemaAutoRegister` makes have to be to each other."""
    schema_compression: str = _written(
        requires=("schemaRegistry", "belongs to it"), default="none", choices=("none", "zlib")
    )
    """Compression of records with the header of `schemaRegistry`."""
    glue_endpoint_url: str | None = option(acts=(DRIVER,))
    """URL of the Glue API. Default: `AWS_ENDPOINT_URL_GLUE`, or else the region's."""
    record_delimiter: str | None = _written(TEXT, pattern=_NOT_EMPTY)
    """Follows the data of each record: Firehose puts nothing between records by itself."""
    record_ids: bool = _written(BOOLEAN, "false")
    """Gives each record the id `query-batch-partition-row`: the column `recordId` of the value, or a first line
    before the data."""
    wire_format: str | None = option(acts=(TASK,), refused_with=(GATEWAY_DECIDES,), choices=("cbor", "json"))
    """Format of requests. Default: cbor for the service's own endpoints, json for others, such as LocalStack's."""
    dead_letter_path: str | None = option(
        acts=(DRIVER, TASK),
        refused_with=(
            Refusal(
                "failOnError",
                "the first record that Kinesis refuses fails the task, or is kept; $maxAttempts=1 in the place of "
                "$failOnError keeps it without another attempt",
            ),
        ),
    )
    """Folder (shared by the executors), or s3://BUCKET/FOLDER, for records that cannot be written. Default:
    they fail the task."""
    max_attempts: int | None = option(
        INTEGER,
        acts=(TASK,),
        refused_with=(
            Refusal("sinkEndpoint", "start the sink gateway with --max-attempts, for all of its clients"),
            replace(_NO_OTHER_ATTEMPT, unless="1"),
        ),
        minimum=1,
    )
    """Most submissions of a record before it is given up. Default: no bound."""
    time_to_live: float | None = option(
        SECONDS, acts=(TASK,), refused_with=(GATEWAY_DECIDES, _NO_OTHER_ATTEMPT), minimum=0.001
    )
    """How long a record may be sent again before it is given up. Default: no bound."""
    stall_timeout: float = option(SECONDS, "2m", acts=(TASK,), minimum=0.1)
    """How long a write task waits for the destination to take or throttle anything before it fails."""
    aggregation: bool = option(BOOLEAN, "false", acts=(TASK,), refused_with=(replace(GATEWAY_DECIDES, unless="false"),))
    """Packs records into aggregates of the Kinesis Producer Library."""
    max_records_per_second: float | None = _rate(NUMBER, minimum=0.001)
    """Most records per second of each write task, to each stream. Default: what the answers allow."""
    max_bytes_per_second: int | None = _rate(BYTES, minimum=1)
    """Most bytes per second of each write task, to each stream. Default: what the answers allow."""
    sink_rate_strategy: str | None = _rate(choices=("shards", "aimd", "none"))
    """How a write task finds its rate: each shard's own pace; a limit on what is in flight that follows the
    answers (FLIP-242); or nothing but `maxInFlightRequests`. Default: shards; for Firehose and with
    `aggregation`, which have none to pace, an aimd after a slow start."""
    max_batch_size: int = option(INTEGER, "500", acts=(TASK,), minimum=1, flink="sink.batch.max-size")
    """Most records of a PutRecords request. Left out with `aggregation`: 10000 rows."""
    max_in_flight_requests: int = option(
        INTEGER, "50", acts=(TASK,), minimum=1, maximum=500, flink="sink.requests.max-inflight"
    )
    """Most requests of a write task under way, each on a connection of its own."""
    max_buffered_requests: int = option(
        INTEGER, "10000", acts=(TASK,), minimum=1, maximum=1_000_000, flink="sink.requests.max-buffered"
    )
    """Most records that wait in a write task, besides those in flight. Left out with `aggregation`: 100000."""
    max_batch_size_in_bytes: int = option(BYTES, "5m", acts=(TASK,), minimum=1, flink="sink.flush-buffer.size")
    """Most bytes of a PutRecords request. Left out with `aggregation`: 4.5 MiB; for Firehose: 4 MiB."""
    max_record_size_in_bytes: int = option(BYTES, "1m", at_most="maxBatchSizeInBytes", acts=(TASK,), minimum=1)
    """Largest record, its partition key included. Left out for Firehose: 1,024,000 bytes."""
    max_time_in_buffer: float = option(MILLISECONDS, "5s", acts=(TASK,), minimum=1, flink="sink.flush-buffer.timeout")
    """Longest wait of a record for others to share its request."""
    fail_on_error: bool = option(
        BOOLEAN,
        "false",
        acts=(TASK,),
        refused_with=(replace(GATEWAY_DECIDES, unless="false"),),
        flink="sink.fail-on-error",
    )
    """Whether the first record that Kinesis refuses fails the task, without another attempt."""


def check_writing(options: "KinesisOptions") -> None:
    """Check that the options of writing fit together.

    Raises:
        OptionError: two options contradict each other; the error names both.
    """
    if options.random_partition_key and options.partition_key_column != "partitionKey":
        raise OptionError.contradictory(
            "randomPartitionKey", "partitionKeyColumn", "a key is random or comes from a column"
        )
    if options.csv_delimiter != "," and options.value_format != "csv":
        raise OptionError.contradictory("csvDelimiter", "valueFormat", "the delimiter belongs to $valueFormat=csv")
    if options.record_delimiter is not None and options.value_format == "avro":
        raise OptionError.contradictory(
            "recordDelimiter", "valueFormat", "Avro's bytes may hold the delimiter too: it would separate nothing"
        )
    _check_registry(options)
    if options.sink_rate_strategy == "shards" and options.aggregation:
        raise OptionError.contradictory(
            "sinkRateStrategy",
            "aggregation",
            "the records of an aggregate are not paced by shards; leave $sinkRateStrategy out, or give aimd or none",
        )
    if options.max_batch_size >= options.max_buffered_requests:
        raise OptionError.contradictory(
            "maxBufferedRequests",
            "maxBatchSize",
            f"a task must buffer more records than the {options.max_batch_size} of a request",
        )


def _check_registry(options: "KinesisOptions") -> None:
    kind = options.value_format
    if options.schema_registry is None:
        if kind == "protobuf":
            raise OptionError.missing("schemaRegistry", "$valueFormat=protobuf writes a message of a registered schema")
        return
    if kind == "csv":
        raise OptionError.contradictory("schemaRegistry", "valueFormat", f"the registry has no schemas of {kind}")
    if options.record_delimiter is not None:
        raise OptionError.contradictory(
            "recordDelimiter",
            "schemaRegistry",
            "the header's bytes may be the delimiter's: it would separate nothing",
        )
    if options.schema_message is not None and kind != "protobuf":
        raise OptionError.contradictory("schemaMessage", "valueFormat", "messages belong to $valueFormat=protobuf")
    if options.schema_auto_register and kind == "protobuf":
        raise OptionError.invalid(
            "schemaAutoRegister",
            "true",
            "false with $valueFormat=protobuf: whoever writes the .proto file numbers its fields, and numbers that "
            "followed the columns would change with them",
        )
    if options.schema_auto_register and options.schema_version is not None:
        raise OptionError.contradictory(
            "schemaVersion", "schemaAutoRegister", "what is written is that version, or what the columns make"
        )
