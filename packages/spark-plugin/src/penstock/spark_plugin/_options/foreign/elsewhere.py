"""Options of other sources, and words of Spark's own, that people write here out of habit: each with what to do."""

from collections.abc import Mapping

from penstock.spark_plugin.errors import ForeignOptionError

_KAFKA = "Kafka"
_SPARK = "Spark"
_LIMIT = "limit a micro-batch by `maxRecordsPerBatch` or `maxBytesPerBatch`"
_NO_TABLE = (
    "it comes from CREATE TABLE, and a stream cannot be a table: use CREATE TEMPORARY VIEW … USING kinesis OPTIONS (…)"
)
_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "subscribe": (_KAFKA, "name the stream in `streamName`"),
    "assign": (_KAFKA, "a stream is read whole: name it in `streamName`; `initialPosition` takes a position per shard"),
    "subscribePattern": (_KAFKA, "give the pattern as `streamNamePattern`"),
    "topic": (_KAFKA, "name the stream in `streamName`"),
    "startingOffsets": (
        _KAFKA,
        "`initialPosition` is TRIM_HORIZON for earliest, LATEST for latest, or JSON of streams and shards",
    ),
    "startingTimestamp": (_KAFKA, "give the time as `initialPosition`, such as `AT_TIMESTAMP 2026-01-31T00:00:00Z`"),
    "startingOffsetsByTimestamp": (
        _KAFKA,
        'give times as `initialPosition`, such as `{"<stream>": "2026-01-31T00:00:00Z"}`',
    ),
    "endingOffsets": (_KAFKA, "a bounded read ends now, or at `endingPosition`: a time, or JSON per shard"),
    "endingOffsetsByTimestamp": (_KAFKA, "give one time as `endingTimestamp`"),
    "maxOffsetsPerTrigger": (_KAFKA, _LIMIT),
    "minOffsetsPerTrigger": (_KAFKA, "give the number as `minRecordsPerBatch`"),
    "includeHeaders": (_KAFKA, "records of Kinesis have no headers"),
    "startingOffsetsByTimestampStrategy": (_KAFKA, "leave it out: a time begins with the first record after it"),
    "groupIdPrefix": (_KAFKA, "there are no consumer groups: a query with enhanced fan-out has its `efoConsumerName`"),
    "kafkaConsumer.pollTimeoutMs": (_KAFKA, "errors that may pass are retried for `retryPatience`"),
    "fetchOffset.numRetries": (_KAFKA, "errors that may pass are retried for `retryPatience`"),
    "fetchOffset.retryIntervalMs": (_KAFKA, "errors that may pass are retried for `retryPatience`"),
    "maxBytesPerTrigger": (_SPARK, _LIMIT),
    "maxRowsPerTrigger": (_SPARK, _LIMIT),
    "schema": (_SPARK, "the columns are those of records: parse `data`, such as by `from_json`"),
    "inferSchema": (_SPARK, "the columns are those of records: parse `data`, such as by `from_json`"),
    "provider": (_SPARK, _NO_TABLE),
    "location": (_SPARK, _NO_TABLE),
    "maxFilesPerTrigger": (_SPARK, _LIMIT),
    "path": (_SPARK, "a stream has no path: name it in `streamName`, and call load() or save() without one"),
    "owner": (_SPARK, _NO_TABLE),
    "table": (_SPARK, _NO_TABLE),
}
_KAFKA_CLIENT: Mapping[str, str] = {
    "kafka.bootstrap.servers": "Kinesis has no brokers: give `region`, or `endpointUrl` for an endpoint of your own",
    "kafka.group.id": "there are no consumer groups: a query with enhanced fan-out has its `efoConsumerName`",
    "kafka.security.protocol": "give `endpointUrl` with https://, and `caBundle` for an authority of your own",
    "kafka.auto.offset.reset": "`failOnDataLoss` says what happens where records are gone",
    "kafka.max.poll.records": "one GetRecords asks for `getRecordsMaxRecords`",
    "kafka.acks": "a write ends when Kinesis has acknowledged all records",
    "kafka.compression.type": "records are written as they are: compress the column `data`",
    "kafka.linger.ms": "records wait for others for `maxTimeInBuffer`",
    "kafka.batch.size": "a request holds `maxBatchSizeInBytes` at most",
}
_KAFKA_CREDENTIALS = "credentials are AWS's: the default chain, `roleArn`, `awsProfile` or `awsAccessKeyId`"
_BY_NAME = {name.lower(): (name, *what) for name, what in _ELSEWHERE.items()}


def elsewhere_remedies() -> list[tuple[str, str, str]]:
    """Each name with the source that it is of, and what to do instead; in the order of their sources."""
    named = [(source, name, remedy) for name, (source, remedy) in _ELSEWHERE.items()]
    return sorted([*named, *((_KAFKA, name, remedy) for name, remedy in _KAFKA_CLIENT.items())])


def from_elsewhere(name: str) -> ForeignOptionError | None:
    """The error that says what to do instead of an option of Kafka's or Spark's; None for any other name."""
    low = name.lower()
    if low.startswith("kafka."):
        other = (
            _KAFKA_CREDENTIALS if low.startswith("kafka.sasl.") else "nothing of Kafka's clients is here: leave it out"
        )
        return ForeignOptionError(name, _KAFKA, _KAFKA_CLIENT.get(low, other))
    if low.startswith("option."):  # what OPTIONS of a table are called beside their own names
        return ForeignOptionError(name, _SPARK, _NO_TABLE)
    known, connector, remedy = _BY_NAME.get(low, ("", "", ""))
    return ForeignOptionError(known, connector, remedy) if known else None
