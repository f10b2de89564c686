"""Options of the AWS connector for Spark (`aws-kinesis`), and of its ancestors on EMR and in Glue (`kinesis`)."""

from collections.abc import Mapping
from functools import partial

from penstock.spark_plugin._options.foreign.spec import (
    Connector,
    ForeignOption,
    client_retries,
    means,
    not_needed,
    refused,
)
from penstock.spark_plugin.errors import InvalidOptionError

_means = partial(means, Connector.AWS)
_not_needed = partial(not_needed, Connector.AWS)
_refused = partial(refused, Connector.AWS)
_LEAST_INTERVAL_MS = 200
"""Kinesis allows 5 reads/s of a shard."""


def _region(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """The stream's region goes first: the other one was that of the connector's own calls."""
    return {} if "kinesis.kinesisregion" in given else {"region": text}


def _interval(text: str, given: Mapping[str, str]) -> dict[str, str]:
    return {"getRecordsInterval": f"{max(int(text), _LEAST_INTERVAL_MS)}ms" if text.isdecimal() else text}


def _fan_out(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """A consumer that is there already: its ARN names the stream."""
    _, is_arn, rest = text.partition(":stream/")
    stream = rest.partition("/consumer/")[0]
    if not is_arn or "/consumer/" not in rest:
        raise InvalidOptionError("fanoutConsumerARN", text, "the ARN of a stream consumer")
    return {"recordPublisher": "efo", "efoRegistration": "none", f"efoConsumerArn.{stream}": text}


def _old(*names: str) -> tuple[str, ...]:
    return tuple(f"kinesis.{name}" for name in names)


AWS: tuple[ForeignOption, ...] = (
    *_means("region", "kinesis.region", text="unless `kinesis.kinesisRegion` is given", convert=_region),
    *_means("region", "kinesis.kinesisRegion"),
    *_means("roleArn", "awsSTSRoleARN"),
    *_means("roleSessionName", "awsSTSSessionName"),
    *_means("shardDiscoveryInterval", "kinesis.describeShardInterval", bare_unit="ms"),
    *_means("shardDiscoveryInterval", "kinesis.client.describeShardInterval", bare_unit="ms"),
    *_means("getRecordsMaxRecords", "kinesis.getRecords.numberOfRecordsPerFetch"),
    *_means("getRecordsMaxRecords", "kinesis.executor.maxRecordPerRead"),
    *_means(
        "getRecordsInterval",
        "kinesis.getRecords.fetchIntervalMs",
        "kinesis.executor.idleTimeBetweenReadsInMs",
        text="at least 200 ms, which is what Kinesis allows",
        convert=_interval,
    ),
    *_means("subscribeToShardMaxRetries", "kinesis.subscribeToShard.maxRetries"),
    *_means("maxTimeInBuffer", "kinesis.sink.recordMaxBufferedTimeMs"),
    *_not_needed(
        "a micro-batch holds what is there; bound it by `maxRecordsPerShardPerBatch`, or as a whole",
        *_old("maxFetchRecordsPerShard", "executor.maxFetchRecordsPerShard"),
    ),
    *_not_needed(
        "a task reads a range that is known beforehand, for as long as that takes",
        *_old("maxFetchTimePerShardSec", "maxFetchTimeInSec", "executor.maxFetchTimeInMs"),
    ),
    *_not_needed(
        "a micro-batch holds what is there; bound it by `maxRecordsPerShardPerBatch`, or as a whole",
        "maxFetchRecordsPerShard",
    ),
    *_not_needed("a task reads a range that is known beforehand, for as long as that takes", "maxFetchTimeInMs"),
    *_means("getRecordsMaxRecords", "maxRecordPerRead"),
    *_means("getRecordsInterval", "idleTimeBetweenReadsInMs", text="at least 200 ms", convert=_interval),
    *_means("shardDiscoveryInterval", "describeShardInterval", bare_unit="ms"),
    *_means(
        "efoConsumerArn",
        "fanoutConsumerARN",
        text="of its stream, with `recordPublisher=efo` and `efoRegistration=none`",
        convert=_fan_out,
    ),
    *_not_needed("`lastProgress`, metrics and `penstock lag` tell how far behind a query is", "emitConsumerLagMetrics"),
    *_refused(
        "the column `approximateArrivalTimestamp` has it in each row",
        "addRecordTimestamp",
        harmless=("false",),
    ),
    *_not_needed(
        "GetRecords keeps to `getRecordsInterval` anyway",
        *("kinesis.executor.addIdleTimeBetweenReads", "addIdleTimeBetweenReads"),
    ),
    *_not_needed(
        "offsets are in Spark's checkpoint, and nothing else is kept",
        *_old(
            "minBatchesToRetain",
            "metadataCommitterType",
            "metadataPath",
            "metadataNumRetries",
            "metadataRetryIntervalsMs",
            "metadataMaxRetryIntervalMs",
            "dynamodb.tableName",
            "executor.metadata.path",
            "executor.metadata.*",
        ),
    ),
    *_not_needed("the reader knows of new records by itself", "kinesis.checkNewRecordThreads"),
    *client_retries(
        Connector.AWS,
        *_old("clientNumRetries", "clientRetryIntervalsMs", "clientMaxRetryIntervalMs"),
        longest_by_default="10s",
    ),
    *client_retries(
        Connector.AWS,
        *_old("client.numRetries", "client.retryIntervalMs", "client.maxRetryIntervalMs"),
        longest_by_default="10s",
    ),
    *_not_needed(
        "an idle stream makes no empty micro-batches",
        *_old("internal.avoidEmptyBatches", "client.avoidEmptyBatches"),
        harmless=("true",),
    ),
    *_not_needed("it is about that connector's own queues", "kinesis.internal.*"),
    *_not_needed("a task returns when Kinesis has acknowledged all of its records", "kinesis.sink.flushWaitTimeMs"),
    *_not_needed("requests under way are bounded by `maxInFlightRequests`", "kinesis.sink.maxConnections"),
    *_means("aggregation", "kinesis.sink.aggregationEnabled"),
    *_means(
        "timeToLive",
        "kinesis.sink.recordTtl",
        text="a record that is given up fails the task, or goes to `deadLetterPath`: none is dropped in silence",
        bare_unit="ms",
    ),
    *_refused(
        "give the credentials that are meant: keys, `awsProfile`, `roleArn` or `credentialsProvider`; without them the "
        "default chain looks for an instance profile at last",
        "awsUseInstanceProfile",
        harmless=("true",),
    ),
    *_refused(
        "Java classes do not run here: write a function of Python that returns the credentials, and name it as "
        "`credentialsProvider`",
        *_old("credentialProviderClass", "credentialProviderParam"),
    ),
    *_refused(
        "give the proxy as `proxyUrl`, or by the environment's `HTTPS_PROXY`",
        *_old("sink.proxyAddress", "sink.proxyPort", "sink.proxyUsername", "sink.proxyPassword"),
    ),
)
