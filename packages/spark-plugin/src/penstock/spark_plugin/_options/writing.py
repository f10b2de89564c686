"""Writing: what becomes a record, and how records are sent."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.spark_plugin._options.values import option
from penstock.spark_plugin.errors import OptionError

if TYPE_CHECKING:
    from penstock.spark_plugin._options.kinesis_options import KinesisOptions

_DELIMITER = (r'[^"\r\n]', "one character, no quote and no line break")
_NOT_EMPTY = (r"(?s:.+)", "a text that is not empty; leave it out for none")
_BYTES_MAY_HOLD_IT = "the encoded bytes may contain the delimiter"
_GATEWAY = {"sinkEndpoint": "the gateway decides that for all of its clients"}
_FIRST_REFUSED = {"failOnError": "the first record that Kinesis refuses fails the task, without another attempt"}

_written = partial(option, acts="driver task")
_registered = partial(option, needs="schemaRegistry", acts="driver")
_sent = partial(option, acts="task")
_rate = partial(
    _sent,
    not_with={
        "sinkEndpoint": "give the sink gateway --rate-strategy, --max-records-per-second or their like, for all of its "
        "clients"
    },
)


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Options of what becomes a record."""

    partition_key_column: str = _written(
        default="partitionKey", not_with={"randomPartitionKey": "a key is random or comes from a column"}
    )
    """Column with the partition key."""
    random_partition_key: bool = _written("boolean", "false")
    """Gives each record a random partition key; then the rows need no key column."""
    value_format: str | None = _written(choices=("json", "avro", "csv", "protobuf"))
    """Makes the data of all columns, instead of reading a column `data`. avro and protobuf need the extras with these
    names, and protobuf also needs a `schemaRegistry`."""
    value_columns: tuple[str, ...] = _written("strings", needs="valueFormat")
    """Columns of the value, in this order. Default: all but `partitionKey`, `explicitHashKey` and the stream's."""
    csv_delimiter: str = _written("text", ",", pattern=_DELIMITER, needs="valueFormat=csv")
    """Separates the columns of valueFormat csv."""
    record_delimiter: str | None = _written(
        "text",
        pattern=_NOT_EMPTY,
        not_with=dict.fromkeys(("valueFormat=avro", "schemaRegistry"), _BYTES_MAY_HOLD_IT),
    )
    """Follows the data of each record: Firehose puts nothing between records."""
    record_ids: bool = _written("boolean", "false")
    """Gives each record the id `query-batch-partition-row`: the column `recordId` of the value, or a first line
    before the data."""
    schema_registry: str | None = option(
        needs="valueFormat", acts="driver", not_with={"valueFormat=csv": "the registry has no schemas of csv"}
    )
    """Registry of the AWS Glue Schema Registry (`default-registry` is every account's) that has the schema of
    valueFormat avro, json or protobuf: records get its header. json needs the extra `json-schema`."""
    schema_name: str | None = _registered()
    """Name of the schema in `schemaRegistry`. Default: the name of the stream."""
    schema_version: int | None = _registered(
        "integer",
        minimum=1,
        not_with={"schemaAutoRegister": "either that version is written, or the schema of the columns"},
    )
    """Number of the registered version that is written. Default: the latest, at each write and micro-batch."""
    schema_message: str | None = _written(needs="valueFormat=protobuf")
    """Protobuf message that rows become, when the schema has several."""
    schema_auto_register: bool = _registered(
        "boolean",
        "false",
        not_with={
            "valueFormat=protobuf": "field numbers made from the columns would change with them: register the .proto "
            "file"
        },
    )
    """Writes the schema of the columns, avro or json, and registers it as a new version or a new schema if it is not
    registered."""
    schema_compatibility: str = option(
        needs="schemaAutoRegister",
        default="backward",
        acts="driver",
        choices=("backward", "backward_all", "forward", "forward_all", "full", "full_all", "none", "disabled"),
    )
    """Compatibility between the versions of a schema that `schemaAutoRegister` creates."""
    schema_compression: str = _written(needs="schemaRegistry", default="none", choices=("none", "zlib"))
    """Compression of records with the header of `schemaRegistry`."""
    glue_endpoint_url: str | None = option(acts="driver")
    """URL of the Glue API. Default: `AWS_ENDPOINT_URL_GLUE`, or else the region's."""


@dataclass(frozen=True, kw_only=True)
class SendingOptions:
    """Options of how records are sent."""

    aggregation: bool = _sent("boolean", "false", harmless="false", not_with=_GATEWAY)
    """Packs records into aggregates of the Kinesis Producer Library."""
    dead_letter_path: str | None = option(
        acts="driver task",
        not_with={
            "failOnError": "the first record that Kinesis refuses fails the task, or is kept; $maxAttempts=1 instead "
            "of $failOnError keeps it without another attempt"
        },
    )
    """Folder (shared by the executors), or s3://BUCKET/FOLDER, for records that cannot be written. Default:
    they fail the task."""
    max_attempts: int | None = _sent(
        "integer",
        minimum=1,
        not_with={"sinkEndpoint": "start the sink gateway with --max-attempts, for all of its clients"},
    )
    """Most attempts to send a record before it fails. Default: no limit."""
    time_to_live: float | None = _sent("seconds", not_with=_GATEWAY | _FIRST_REFUSED, minimum=0.001)
    """How long a record may be sent again before it fails. Default: no limit."""
    fail_on_error: bool = _sent("boolean", "false", harmless="false", not_with=_GATEWAY)
    """Whether the first record that Kinesis refuses fails the task, without another attempt."""
    stall_timeout: float = _sent("seconds", "2m", minimum=0.1)
    """How long a write task waits for the destination to accept or throttle anything before it fails."""
    max_records_per_second: float | None = _rate("integer", minimum=1)
    """Most records per second of each write task, to each stream. Default: what the answers allow."""
    max_bytes_per_second: int | None = _rate("bytes", minimum=1)
    """Most bytes per second of each write task, to each stream. Default: what the answers allow."""
    sink_rate_strategy: str | None = _rate(choices=("shards", "aimd", "none"))
    """How a write task finds its rate: each shard's own pace; a limit on what is in flight that follows the
    answers (FLIP-242); or only `maxInFlightRequests`. Default: shards; for Firehose and with
    `aggregation`, where there are no shards to pace, an aimd after a slow start."""
    max_batch_size: int = _sent("integer", "500", minimum=1)
    """Most records of a PutRecords request. Left out with `aggregation`: 10000 rows."""
    max_batch_size_in_bytes: int = _sent("bytes", "5m", minimum=1)
    """Most bytes of a PutRecords request. Left out with `aggregation`: 4.5 MiB; for Firehose: 4 MiB."""
    max_record_size_in_bytes: int = _sent("bytes", "1m", at_most="maxBatchSizeInBytes", minimum=1)
    """Largest record, its partition key included. Left out for Firehose: 1,024,000 bytes."""
    max_time_in_buffer: float = _sent("milliseconds", "5s", minimum=1)
    """Longest wait of a record for others to share its request."""
    max_in_flight_requests: int = _sent("integer", "50", minimum=1, maximum=500)
    """Most requests of a write task at the same time, each on a connection of its own."""
    max_buffered_requests: int = _sent("integer", "10000", minimum=1, maximum=1_000_000)
    """Most records that wait in a write task, besides those in flight. Left out with `aggregation`: 100000."""
    wire_format: str | None = _sent(not_with=_GATEWAY, choices=("cbor", "json"))
    """Format of requests. Default: cbor for the service's own endpoints, json for others, such as LocalStack's."""


def check_writing(options: "KinesisOptions") -> None:
    """Check that the options of writing fit together.

    Raises:
        OptionError: two options contradict each other; the error names both.
    """
    if options.value_format == "protobuf" and options.schema_registry is None:
        raise OptionError.missing("schemaRegistry", "$valueFormat=protobuf writes a message of a registered schema")
    if options.fail_on_error and options.max_attempts not in (None, 1):
        raise OptionError.contradictory("maxAttempts", "failOnError", _FIRST_REFUSED["failOnError"])
    if options.sink_rate_strategy == "shards" and options.aggregation:
        reason = "an aggregate's records are not paced by shards: give aimd, none, or leave $sinkRateStrategy out"
        raise OptionError.contradictory("sinkRateStrategy", "aggregation", reason)
    if options.max_batch_size >= options.max_buffered_requests:
        reason = f"a task must buffer more records than the {options.max_batch_size} of a request"
        raise OptionError.contradictory("maxBufferedRequests", "maxBatchSize", reason)
