"""Options of Flink's Kinesis connectors: of the consumer and the source of its DataStream API, and of its SQL tables.

Those of its source for DynamoDB Streams are here, too.

The setters of its sinks' builders are options of ours without their `set`, but for one. The names that `OPTIONS` gives
as Flink's are known besides; of `flink.…` the SQL names `scan.…` follow, and of
`aws.credentials.provider.…` the SQL names `aws.credentials.…`.
"""

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
from penstock.spark_plugin.errors import MissingOptionError

_means = partial(means, Connector.FLINK)
_not_needed = partial(not_needed, Connector.FLINK)
_refused = partial(refused, Connector.FLINK)


def _producer_endpoint(text: str, given: Mapping[str, str]) -> dict[str, str]:
    port = given.get("sink.producer.kinesis-port")
    return {"endpointUrl": f"https://{text}" + (f":{port}" if port else "")}


def _endpoint_has_it(text: str, given: Mapping[str, str]) -> dict[str, str]:
    if "sink.producer.kinesis-endpoint" not in given:
        raise MissingOptionError(
            "sink.producer.kinesis-endpoint", "sink.producer.kinesis-port is the port of that host"
        )
    return {}


_ROLES = ("aws.credentials.provider.role", "aws.credentials.role")


def _roles(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """Both roles of a chain, whichever of the two is translated."""
    outer = next((given[f"{role}.arn"] for role in _ROLES if f"{role}.arn" in given), None)
    inner = next((given[f"{role}.provider.role.arn"] for role in _ROLES if f"{role}.provider.role.arn" in given), None)
    return {"roleArn": ",".join(arn for arn in (inner, outer) if arn)}


def _role_provider(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """What has its own keys below it says no more than these do."""
    needed = {"assume_role": ("role.arn",), "web_identity_token": ("role.arn", "webidentitytoken.file")}
    keys = needed.get(text.lower(), ())
    if keys and any(all(f"{role}.provider.{key}" in given for key in keys) for role in _ROLES):
        return {}
    return {"roleCredentialsProvider": text}


def _retries_of(prefix: str) -> tuple[str, ...]:
    return tuple(
        f"{family}.{prefix}.{suffix}"
        for family in ("flink", "scan")
        for suffix in ("maxretries", "backoff.base", "backoff.max", "backoff.expconst")
    )


def _both(*names: str) -> tuple[str, ...]:
    return tuple(f"{family}.{name}" for family in ("flink", "scan") for name in names)


FLINK: tuple[ForeignOption, ...] = (
    *_means("initialPosition", "source.init.position"),
    *_means("initialTimestamp", "scan.stream.initpos-timestamp", "source.init.timestamp"),
    *_means("initialTimestampFormat", "scan.stream.initpos-timestamp-format", "source.init.timestamp.format"),
    *_means("recordPublisher", "source.reader.type"),
    *_means("efoConsumerName", "source.efo.consumer.name"),
    *_means(
        "efoRegistration",
        "source.efo.lifecycle",
        text="JOB_MANAGED and SELF_MANAGED are `lazy`: a consumer that exists is used, and left as it was",
        values=(("job_managed", "lazy"), ("self_managed", "lazy")),
    ),
    *_means(
        "shardDiscoveryInterval",
        *_both("shard.discovery.intervalmillis"),
        "source.shard.discovery.interval",
        bare_unit="ms",
    ),
    *_means("getRecordsMaxRecords", "source.shard.get-records.max-record-count"),
    *_means("awsAccessKeyId", "aws.credentials.provider.role.provider.basic.accesskeyid"),
    *_means("awsSecretAccessKey", "aws.credentials.provider.role.provider.basic.secretkey"),
    *_means("awsProfile", "aws.credentials.provider.role.provider.profile.name"),
    *_means("deliveryStreamName", "delivery-stream"),
    *_means("maxTimeInBuffer", "sink.producer.record-max-buffered-time", "maxTimeInBufferMS"),
    *_means("maxBatchSize", "sink.producer.collection-max-size"),
    *_means("maxInFlightRequests", "sink.producer.collection-max-count"),
    *_means("failOnError", "sink.producer.fail-on-error"),
    *_means(
        "endpointUrl", "sink.producer.kinesis-endpoint", text="`https://<host>:<port>`", convert=_producer_endpoint
    ),
    *_means("endpointUrl", "sink.producer.kinesis-port", text="with its host", convert=_endpoint_has_it),
    *_not_needed(
        "the format of the data source says it", "connector", harmless=("kinesis", "kinesis-legacy", "firehose")
    ),
    *_refused(
        "rows hold a record's bytes in `data`: leave it out, and parse them with from_json, from_csv or from_avro; to "
        "write, give `valueFormat`",
        "format",
        harmless=("raw",),
    ),
    *_not_needed("shards are grouped by their bytes, into `maxPartitions`", "scan.shard-assigner"),
    *_not_needed("shards are grouped by their bytes, into `maxPartitions`", "source.shard-assigner"),
    *_not_needed(
        "an empty answer is asked again after `getRecordsInterval`", "source.reader.empty-records-fetch-interval"
    ),
    *_not_needed("connections come and go as shards do", *_both("stream.efo.http-client.max-concurrency")),
    *_not_needed("a subscription without a byte for 35 s is renewed", *_both("stream.efo.http-client.read-timeout")),
    *_refused(
        "leave it out: calls that list shards are tried again with a back-off of their own, those of a running query "
        "for as long as reading is",
        *_retries_of("stream.describe"),
        *_retries_of("list.shards"),
    ),
    *_not_needed(
        "SubscribeToShard says itself when a consumer is ACTIVE",
        *_retries_of("stream.describestreamconsumer"),
        "source.efo.describe.retry-strategy.attempts.max",
        "source.efo.describe.retry-strategy.delay.min",
        "source.efo.describe.retry-strategy.delay.max",
    ),
    *_means("deregisterStreamConsumerTimeout", "source.efo.deregister.timeout", bare_unit="ms"),
    *_means("subscribeToShardTimeout", "source.efo.subscription.timeout", bare_unit="ms"),
    *client_retries(
        Connector.FLINK,
        "retry-strategy.attempts.max",
        "retry-strategy.delay.min",
        "retry-strategy.delay.max",
        counts_the_first=True,
    ),
    *client_retries(
        Connector.FLINK,
        "flink.dynamodbstreams.numretries",
        "flink.dynamodbstreams.backoff.mindelayduration",
        "flink.dynamodbstreams.backoff.maxdelay",
    ),
    *_means("getRecordsInterval", "flink.dynamodbstreams.getrecords.nonempty.mindelay"),
    *_not_needed(
        "an empty answer is asked again after `getRecordsInterval`", "flink.dynamodbstreams.getrecords.empty.mindelay"
    ),
    *_not_needed(
        "it waits for shards that a list does not show yet", "flink.describestream.inconsistencyresolution.retries"
    ),
    *_means("adaptiveReads", *_both("shard.adaptivereads")),
    *_not_needed("errors of the network are retried", *_both("shard.consumer.error.recoverable*")),
    *_not_needed("errors of the network are retried", "shard.consumer.error.recoverable*"),
    *_refused(
        "`maxShardSkew` (1 minute) keeps the shards of a micro-batch together, and idle shards hold nothing back: "
        "leave it out, and give `withWatermark` a longer delay than that",
        *_both("shard.idle.interval", "watermark.lookahead.millis"),
        harmless=("-1", "0"),
    ),
    *_refused(
        "`maxShardSkew` (1 minute) keeps the shards of a micro-batch together: leave it out, and give `withWatermark` "
        "a longer delay than that",
        *_both("watermark.sync.interval", "watermark.sync.queue.capacity"),
    ),
    *_not_needed(
        "HTTP clients are the package's own; `subscribeTransport` and `maxInFlightRequests` are theirs",
        "aws.http.protocol.version",
        "aws.http-client.max-concurrency",
        "aws.http-client.read-timeout",
        "sink.http-client.protocol.version",
        "sink.http-client.max-concurrency",
        "sink.http-client.read-timeout",
        "sink.client.properties",
        "aws.kinesis.client.user-agent-prefix",
        "aws.firehose.client.user-agent-prefix",
        "aws.dynamodbstreams.client.user-agent-prefix",
    ),
    *_means("roleArn", "aws.credentials.provider.role.arn", "aws.credentials.role.arn", convert=_roles),
    *_means(
        "roleArn",
        "aws.credentials.provider.role.provider.role.arn",
        "aws.credentials.role.provider.role.arn",
        text="before the other role, with a comma",
        convert=_roles,
    ),
    *_means(
        "webIdentityTokenFile",
        "aws.credentials.provider.role.provider.webIdentityToken.file",
        "aws.credentials.role.provider.webIdentityToken.file",
    ),
    *_means(
        "roleCredentialsProvider",
        "aws.credentials.provider.role.provider",
        "aws.credentials.role.provider",
        text="ASSUME_ROLE and WEB_IDENTITY_TOKEN with the keys of the first role",
        convert=_role_provider,
    ),
    *_means(
        "randomPartitionKey", "sink.partitioner", text="`random`; others are columns", values=(("random", "true"),)
    ),
    *_refused(
        "make the key in a select: `concat_ws('|', user_id, item_id) as partitionKey`",
        "sink.partitioner-field-delimiter",
    ),
    *_refused(
        "name the authority of the endpoint's certificate by `caBundle`; certificates are always checked",
        "aws.trust.all.certificates",
        harmless=("false",),
    ),
    *_refused("name the authority by `caBundle`", "sink.producer.verify-certificate", harmless=("true",)),
    *_refused(
        "set AWS_SHARED_CREDENTIALS_FILE in the environment of the driver and the executors",
        "aws.credentials.provider.profile.path",
        "aws.credentials.profile.path",
        "aws.credentials.provider.role.provider.profile.path",
    ),
    *_refused(
        "Java classes do not run here: write a function of Python that returns the credentials, and name it as "
        "`credentialsProvider`",
        "aws.credentials.provider.custom.class",
        "aws.credentials.custom.class",
        "aws.credentials.provider.role.provider.custom.class",
        "aws.credentials.role.provider.custom.class",
    ),
    *_means("aggregation", "sink.producer.aggregation-enabled"),
    *_means("timeToLive", "sink.producer.record-ttl", bare_unit="ms"),
    *_refused("bound the rate by `maxRecordsPerSecond` or `maxBytesPerSecond`", "sink.producer.rate-limit"),
    *_refused(
        "throttled records are sent again: give `maxAttempts`, 1 to give them up at once",
        "sink.producer.fail-if-throttled",
        harmless=("false",),
    ),
    *_not_needed("this sink has no Kinesis Producer Library in it", "sink.producer.*"),
)
