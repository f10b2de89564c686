"""Options of Databricks' Kinesis source, of `readStream` and of `read_kinesis`."""

from collections.abc import Mapping
from functools import partial

from penstock.spark_plugin._options.foreign.spec import Connector, ForeignOption, means, not_needed, refused
from penstock.spark_plugin.errors import InvalidOptionError, MissingOptionError

_means = partial(means, Connector.DATABRICKS)
_not_needed = partial(not_needed, Connector.DATABRICKS)
_refused = partial(refused, Connector.DATABRICKS)


def _registered_consumers(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """ARNs name their streams; names need the stream to hold one of that name, which is used and left."""
    if given.get("registeredconsumeridtype", "name").lower() != "arn":
        return {"efoConsumerName": text}
    arns = [one.strip() for one in text.split(",") if one.strip()]
    consumers = {f"efoConsumerArn.{_stream_of(arn)}": arn for arn in arns}
    return {"efoRegistration": "none", **consumers}


def _stream_of(consumer_arn: str) -> str:
    return consumer_arn.partition(":stream/")[2].partition("/")[0]


def _id_has_it(text: str, given: Mapping[str, str]) -> dict[str, str]:
    if text.lower() not in ("name", "arn"):
        raise InvalidOptionError("registeredConsumerIdType", text, "name or ARN")
    if text.lower() == "arn" and "registeredconsumerid" not in given:
        raise MissingOptionError("registeredConsumerId", "registeredConsumerIdType=ARN says that it is one")
    return {}


DATABRICKS: tuple[ForeignOption, ...] = (
    *_means(
        "efoConsumerName",
        "registeredConsumerId",
        text="ARNs are `efoConsumerArn.<stream>` with `efoRegistration=none`; a consumer that has the name is "
        "used, and left as it was",
        convert=_registered_consumers,
    ),
    *_means("efoConsumerName", "registeredConsumerIdType", text="`name` or `ARN`: see above", convert=_id_has_it),
    *_means("getRecordsMaxRecords", "maxRecordsPerFetch"),
    *_means("getRecordsInterval", "minFetchPeriod"),
    *_means("shardDiscoveryInterval", "shardFetchInterval"),
    *_not_needed(
        "a consumer that the query registered is deregistered when its last lease ends; one that existed is left",
        "requireConsumerDeregistration",
        harmless=("true",),
    ),
    *_not_needed("registration is held by a lease, which is renewed by itself", "consumerRefreshInterval"),
    *_not_needed("buffers are bounded by bytes: `bufferBytes`", "maxFetchDuration"),
    *_not_needed("a shard gives 2 MiB/s; bound a micro-batch by `maxBytesPerBatch`", "maxFetchRate"),
    *_not_needed("shards are grouped by their bytes, into `maxPartitions`", "shardsPerTask"),
    *_not_needed("ListShards is asked for all of them", "maxShardsPerDescribe"),
    *_not_needed(
        "Arrow batches are made of whole answers: there are no blocks",
        "coalesceThresholdBlockSize",
        "coalesceBinSize",
        "coalesce",
    ),
    *_not_needed("an idle stream makes no empty micro-batches", "avoidEmptyBatches", harmless=("true",)),
    *_refused(
        "it exists in Databricks alone: give a function that asks for it by `credentialsProvider`, as the guide for "
        "Databricks shows, or assume its role by `roleArn`",
        "serviceCredential",
        "databricks.connection",
    ),
)
