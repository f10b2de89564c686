"""Complete examples of other connectors' documents, line by line: what is written there, and what it is here.

Of each the options alone, as they stand; streams, ARNs, keys and endpoints are placeholders.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from penstock.spark_plugin._options.foreign import Connector
from penstock.spark_plugin._options.values import PositionOption, PositionOptionType

LATEST = PositionOption(PositionOptionType.LATEST)
OLDEST = PositionOption(PositionOptionType.TRIM_HORIZON)


class Way(Enum):
    """What an example does."""

    READ_STREAM = "readStream"
    WRITE = "write"
    FIREHOSE = "write to a delivery stream"


@dataclass(frozen=True)
class Ours:
    """The line means options of this package: their fields, with the values that they have then."""

    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Told:
    """The line is not needed, and a warning says why; with these words in it."""

    why: str


@dataclass(frozen=True)
class Silent:
    """The line says what is so anyway, or is Spark's own."""


@dataclass(frozen=True)
class Refused:
    """The line is an error; with these words in it."""

    words: str


Became = Ours | Told | Silent | Refused
Line = tuple[str, str, Became]


@dataclass(frozen=True)
class Example:
    """Options of one example, in their order."""

    connector: Connector
    name: str
    way: Way
    lines: tuple[Line, ...]
    added: Mapping[str, str] = field(default_factory=dict)
    """What has to be given besides to have it run, beyond an endpoint."""

    def options(self, **places: str) -> dict[str, str]:
        """All lines that are not refused, as Spark passes them, with values for the placeholders."""
        accepted = [(option, text) for option, text, became in self.lines if not isinstance(became, Refused)]
        return {option: text.format(**places) for option, text in accepted} | {
            option: text.format(**places) for option, text in self.added.items()
        }


def ours(**fields: Any) -> Ours:
    return Ours(fields)


STREAM = ours(stream_name=("s",))
ARN = ours(stream_arn=("arn:aws:kinesis:us-east-1:000000000000:stream/s",), stream_name=("s",), region="us-east-1")
CSV = Refused("it must be raw, or left out")
FLINK_KEYS: tuple[Line, ...] = (
    (
        "aws.credentials.provider.basic.accesskeyid",
        "aws_access_key_id",
        ours(aws_access_key_id="aws_access_key_id"),
    ),
    (
        "aws.credentials.provider.basic.secretkey",
        "aws_secret_access_key",
        ours(aws_secret_access_key="aws_secret_access_key"),
    ),
)
ROLE = "arn:aws:iam::123456789012:role/MyRole"


def region(name: str) -> Ours:
    return ours(region=name)


_FLINK_SINK: tuple[Line, ...] = (
    ("failOnError", "False", ours(fail_on_error=False)),
    ("maxBatchSize", "500", ours(max_batch_size=500)),
    ("maxInFlightRequests", "50", ours(max_in_flight_requests=50)),
    ("maxBufferedRequests", "10000", ours(max_buffered_requests=10_000)),
    ("maxTimeInBufferMS", "5000", ours(max_time_in_buffer=5000.0)),
)
"""Setters of the sinks' builders, without `set`. Their schemas and key generators are code, and no options."""

FLINK = (
    Example(
        Connector.FLINK,
        "a table",
        Way.READ_STREAM,
        (
            ("connector", "kinesis", Silent()),
            ("stream.arn", "{arn}", ARN),
            ("aws.region", "us-east-1", region("us-east-1")),
            ("source.init.position", "LATEST", ours(initial_position=LATEST)),
            ("format", "csv", CSV),
        ),
    ),
    Example(
        Connector.FLINK,
        "the same table as a sink",
        Way.WRITE,
        (
            ("connector", "kinesis", Silent()),
            ("stream.arn", "{arn}", ARN),
            ("aws.region", "us-east-1", region("us-east-1")),
            ("source.init.position", "LATEST", Refused("belongs to reads, and this is a write")),
            ("format", "csv", CSV),
        ),
        {"valueFormat": "csv"},
    ),
    Example(
        Connector.FLINK,
        "a table with metadata, of kinesis-legacy",
        Way.READ_STREAM,
        (
            ("connector", "kinesis-legacy", Silent()),
            ("stream", "{stream}", STREAM),
            ("aws.region", "us-east-2", region("us-east-2")),
            ("scan.stream.initpos", "LATEST", ours(initial_position=LATEST)),
            ("format", "csv", CSV),
        ),
    ),
    Example(
        Connector.FLINK,
        "KinesisStreamsSource",
        Way.READ_STREAM,
        (
            ("streamArn", "{arn}", ARN),
            ("source.init.position", "TRIM_HORIZON", ours(initial_position=OLDEST)),
            ("source.reader.type", "EFO", ours(record_publisher="efo")),
            ("source.efo.consumer.name", "my-flink-efo-consumer", ours(efo_consumer_name="my-flink-efo-consumer")),
        ),
    ),
    Example(
        Connector.FLINK,
        "FlinkKinesisConsumer",
        Way.READ_STREAM,
        (
            ("stream", "{stream}", STREAM),
            ("aws.region", "us-east-1", region("us-east-1")),
            *FLINK_KEYS,
            ("flink.stream.initpos", "LATEST", ours(initial_position=LATEST)),
        ),
    ),
    Example(
        Connector.FLINK,
        "FlinkKinesisConsumer with enhanced fan-out",
        Way.READ_STREAM,
        (
            ("stream", "{stream}", STREAM),
            ("aws.region", "us-east-1", region("us-east-1")),
            ("flink.stream.initpos", "LATEST", ours(initial_position=LATEST)),
            ("flink.stream.recordpublisher", "EFO", ours(record_publisher="efo")),
            ("flink.stream.efo.consumername", "my-flink-efo-consumer", ours(efo_consumer_name="my-flink-efo-consumer")),
            ("flink.stream.efo.registration", "EAGER", ours(efo_registration="eager")),
        ),
    ),
    Example(
        Connector.FLINK,
        "KinesisStreamsSink",
        Way.WRITE,
        (
            ("aws.region", "us-east-1", region("us-east-1")),
            *FLINK_KEYS,
            ("aws.endpoint", "{endpoint}", ours(endpoint_url="http://127.0.0.1:4567")),
            ("streamName", "{stream}", STREAM),
            *_FLINK_SINK,
            ("maxBatchSizeInBytes", "5242880", ours(max_batch_size_in_bytes=5 << 20)),
            ("maxRecordSizeInBytes", "1048576", ours(max_record_size_in_bytes=1 << 20)),
        ),
    ),
    Example(
        Connector.FLINK,
        "a table of Firehose",
        Way.FIREHOSE,
        (
            ("connector", "firehose", Silent()),
            ("delivery-stream", "{stream}", STREAM),
            ("aws.region", "us-east-2", region("us-east-2")),
            ("format", "csv", CSV),
        ),
        {"valueFormat": "csv"},
    ),
    Example(
        Connector.FLINK,
        "KinesisFirehoseSink",
        Way.FIREHOSE,
        (
            ("aws.region", "eu-west-1", region("eu-west-1")),
            *FLINK_KEYS,
            ("deliveryStreamName", "{stream}", STREAM),
            *_FLINK_SINK,
            ("maxBatchSizeInBytes", "4194304", ours(max_batch_size_in_bytes=4 << 20)),
            ("maxRecordSizeInBytes", "1024000", ours(max_record_size_in_bytes=1000 << 10)),
        ),
    ),
)

DATABRICKS = (
    Example(
        Connector.DATABRICKS,
        "read_kinesis with keys",
        Way.READ_STREAM,
        (
            ("streamName", "{stream}", STREAM),
            ("awsAccessKey", "an-access-key", ours(aws_access_key_id="an-access-key")),
            ("awsSecretKey", "a-secret-key", ours(aws_secret_access_key="a-secret-key")),
            ("initialPosition", "earliest", ours(initial_position=OLDEST)),
        ),
    ),
    Example(
        Connector.DATABRICKS,
        "read_kinesis with a role",
        Way.READ_STREAM,
        (
            ("streamName", "{stream}", STREAM),
            ("initialPosition", "earliest", ours(initial_position=OLDEST)),
            ("roleArn", ROLE, ours(role_arn=ROLE)),
            ("roleSessionName", "testing@databricks.com", ours(role_session_name="testing@databricks.com")),
        ),
    ),
    Example(
        Connector.DATABRICKS,
        "a service credential",
        Way.READ_STREAM,
        (
            ("streamName", "{stream}", STREAM),
            ("region", "us-west-2", region("us-west-2")),
            ("initialPosition", "trim_horizon", ours(initial_position=OLDEST)),
            ("serviceCredential", "my-credential", Refused("unknown option")),
        ),
    ),
    Example(
        Connector.DATABRICKS,
        "enhanced fan-out",
        Way.READ_STREAM,
        (
            ("streamName", "{stream}", STREAM),
            ("region", "us-west-2", region("us-west-2")),
            ("awsAccessKey", "an-access-key", ours(aws_access_key_id="an-access-key")),
            ("awsSecretKey", "a-secret-key", ours(aws_secret_access_key="a-secret-key")),
            ("consumerMode", "efo", ours(record_publisher="efo")),
            ("consumerName", "my-consumer", ours(efo_consumer_name="databricks_my-consumer")),
            ("consumerNamePrefix", "databricks_", ours(efo_consumer_name_prefix="databricks_")),
            ("consumerRefreshInterval", "300s", Told("registration is held by a lease")),
            ("requireConsumerDeregistration", "true", Silent()),
        ),
    ),
    Example(
        Connector.DATABRICKS,
        "a consumer that was registered before",
        Way.READ_STREAM,
        (
            ("streamName", "{stream}", STREAM),
            ("initialPosition", "latest", ours(initial_position=LATEST)),
            ("consumerMode", "efo", ours(record_publisher="efo")),
            ("registeredConsumerId", "my-consumer", ours(efo_consumer_name="my-consumer")),
            ("registeredConsumerIdType", "name", Silent()),
        ),
    ),
    Example(
        Connector.DATABRICKS,
        "options for throughput and latency",
        Way.READ_STREAM,
        (
            ("streamName", "{stream}", STREAM),
            ("initialPosition", "trim_horizon", ours(initial_position=OLDEST)),
            ("maxFetchDuration", "10s", Told("buffers are bounded by bytes: `bufferBytes`")),
            ("maxFetchRate", "1.0", Told("bound a micro-batch by `maxBytesPerBatch`")),
            ("minFetchPeriod", "400ms", ours(get_records_interval=400.0)),
            ("maxRecordsPerFetch", "5000", ours(get_records_max_records=5000)),
            ("fetchBufferSize", "2gb", ours(buffer_bytes=2 << 30)),
            ("shardsPerTask", "5", Told("into `maxPartitions`")),
            ("shardFetchInterval", "1s", ours(shard_discovery_interval=1.0)),
            ("maxShardsPerDescribe", "100", Told("ListShards is asked for all of them")),
            ("coalesceThresholdBlockSize", "10000000", Told("there are no blocks")),
            ("coalesceBinSize", "128000000", Told("there are no blocks")),
            ("avoidEmptyBatches", "true", Silent()),
        ),
    ),
)

AWS = (
    Example(
        Connector.AWS,
        "GetRecords",
        Way.READ_STREAM,
        (
            ("kinesis.region", "us-east-2", region("us-east-2")),
            ("kinesis.streamName", "{stream}", STREAM),
            ("kinesis.consumerType", "GetRecords", ours(record_publisher="polling")),
            ("kinesis.endpointUrl", "{endpoint}", ours(endpoint_url="http://127.0.0.1:4567")),
            ("kinesis.startingposition", "LATEST", ours(initial_position=LATEST)),
        ),
    ),
    Example(
        Connector.AWS,
        "SubscribeToShard",
        Way.READ_STREAM,
        (
            ("kinesis.region", "us-east-2", region("us-east-2")),
            ("kinesis.streamName", "{stream}", STREAM),
            ("kinesis.consumerType", "SubscribeToShard", ours(record_publisher="efo")),
            ("kinesis.endpointUrl", "{endpoint}", ours(endpoint_url="http://127.0.0.1:4567")),
            ("kinesis.startingposition", "LATEST", ours(initial_position=LATEST)),
            ("kinesis.consumerName", "TestConsumer", ours(efo_consumer_name="TestConsumer")),
        ),
    ),
    Example(
        Connector.AWS,
        "metadata in DynamoDB, and an account's role and keys",
        Way.READ_STREAM,
        (
            ("kinesis.streamName", "{stream}", STREAM),
            ("kinesis.endpointUrl", "{endpoint}", ours(endpoint_url="http://127.0.0.1:4567")),
            ("kinesis.startingposition", "TRIM_HORIZON", ours(initial_position=OLDEST)),
            ("kinesis.metadataCommitterType", "DYNAMODB", Told("offsets are in Spark's checkpoint")),
            ("kinesis.dynamodb.tableName", "kinesisTestMetadata", Told("offsets are in Spark's checkpoint")),
            ("kinesis.stsRoleArn", ROLE, ours(role_arn=ROLE)),
            ("kinesis.stsSessionName", "StsSessionName", ours(role_session_name="StsSessionName")),
            ("kinesis.awsAccessKeyId", "awsAccessKeyId", ours(aws_access_key_id="awsAccessKeyId")),
            ("kinesis.awsSecretKey", "awsSecretKey", ours(aws_secret_access_key="awsSecretKey")),
        ),
    ),
    Example(
        Connector.AWS,
        "the sink",
        Way.WRITE,
        (
            ("kinesis.region", "us-east-1", region("us-east-1")),
            ("kinesis.streamName", "{stream}", STREAM),
            ("kinesis.endpointUrl", "{endpoint}", ours(endpoint_url="http://127.0.0.1:4567")),
            ("checkpointLocation", "{checkpoint}", Silent()),
        ),
    ),
)

EXAMPLES = (*FLINK, *DATABRICKS, *AWS)


def example(connector: Connector, name: str) -> Example:
    """One of them."""
    (found,) = (one for one in EXAMPLES if (one.connector, one.name) == (connector, name))
    return found
