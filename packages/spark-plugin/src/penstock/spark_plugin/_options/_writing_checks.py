"""Relations between the options of writing."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.spark_plugin._options._field_names import field_name
from penstock.spark_plugin.errors import ContradictoryOptionsError, InvalidOptionError, MissingOptionError

if TYPE_CHECKING:
    from penstock.spark_plugin._options._kinesis_options import KinesisOptions

_LONGEST_KEY = 256
_LARGEST_REQUEST = 500
_OF_AIMD = ("sinkRateTarget", "sinkInitialRate", "sinkIncreaseRate", "sinkDecreaseFactor", "sinkRateThreshold")


def check_writing(options: "KinesisOptions") -> None:
    """Check what a writer is told.

    Raises:
        OptionError: Naming the option, and the one that it contradicts.
    """
    _check_keys(options)
    _check_values(options)
    _check_rates(options)


def _check_keys(options: "KinesisOptions") -> None:
    if options.random_partition_key and options.partition_key_column != "partitionKey":
        raise ContradictoryOptionsError(
            ("randomPartitionKey", "partitionKeyColumn"), "a key is random or comes from a column"
        )
    if options.fixed_partition_key is None:
        return
    if options.random_partition_key or options.partition_key_column != "partitionKey":
        other = "randomPartitionKey" if options.random_partition_key else "partitionKeyColumn"
        raise ContradictoryOptionsError(("fixedPartitionKey", other), "a key comes from one place")
    if len(options.fixed_partition_key) > _LONGEST_KEY:
        raise InvalidOptionError("fixedPartitionKey", options.fixed_partition_key, "1 to 256 characters")


def _check_values(options: "KinesisOptions") -> None:
    kind = options.value_format
    if options.value_columns and kind is None:
        raise MissingOptionError("valueFormat", "valueColumns are the columns that it makes the data of")
    if options.avro_encoding != "binary" and kind != "avro":
        raise ContradictoryOptionsError(("avroEncoding", "valueFormat"), "the encoding belongs to valueFormat=avro")
    if options.csv_delimiter != "," and kind != "csv":
        raise ContradictoryOptionsError(("csvDelimiter", "valueFormat"), "the delimiter belongs to valueFormat=csv")
    if len(options.csv_delimiter) != 1 or options.csv_delimiter in '"\r\n':
        raise InvalidOptionError("csvDelimiter", options.csv_delimiter, "one character, no quote and no line break")
    if options.record_delimiter == "":
        raise InvalidOptionError("recordDelimiter", "", "a text that is not empty; leave it out for none")
    if options.record_delimiter is not None and kind == "avro":
        raise ContradictoryOptionsError(
            ("recordDelimiter", "valueFormat"), "Avro's bytes may hold the delimiter too: it would separate nothing"
        )


def _check_rates(options: "KinesisOptions") -> None:
    strategy = options.sink_rate_strategy
    if strategy == "shards" and options.aggregation:
        raise ContradictoryOptionsError(
            ("sinkRateStrategy", "aggregation"),
            "the records of an aggregate are not paced by shards; leave sinkRateStrategy out, or give aimd or none",
        )
    given = {name: value for name in _OF_AIMD if (value := getattr(options, field_name(name))) is not None}
    if given and strategy is None:
        raise MissingOptionError("sinkRateStrategy", f"{next(iter(given))} belongs to sinkRateStrategy=aimd")
    if given and strategy != "aimd":
        raise ContradictoryOptionsError((next(iter(given)), "sinkRateStrategy"), "it belongs to sinkRateStrategy=aimd")
    if strategy == "aimd":
        _check_limits(options, given)


def _check_limits(options: "KinesisOptions", given: Mapping[str, Any]) -> None:
    threshold = given.get("sinkRateThreshold")
    for name in ("sinkInitialRate", "sinkIncreaseRate"):
        if threshold is not None and given.get(name, 0) > threshold:
            raise ContradictoryOptionsError(
                (name, "sinkRateThreshold"), f"{given[name]} is more than the limit ever is, {threshold}"
            )
    most = _most_in_flight(options)
    for name in ("sinkInitialRate", "sinkRateThreshold"):
        if given.get(name, 0) > most:
            raise InvalidOptionError(
                name, str(given[name]), f"at most {most}, which is all that maxInFlightRequests and maxBatchSize allow"
            )
    factor = given.get("sinkDecreaseFactor", 0.5 if options.sink_rate_target == "requests" else 0.99)
    if not 0 < factor < 1:
        raise InvalidOptionError("sinkDecreaseFactor", f"{factor:g}", "more than 0 and less than 1")
    limit = threshold or most
    if 1 < limit <= int(limit * factor + 0.5):
        why = f"{limit} times {factor:g} is rounded up to {limit}, so that a throttle would lower nothing"
        if "sinkDecreaseFactor" in given:
            raise InvalidOptionError("sinkDecreaseFactor", f"{factor:g}", f"less: {why}")
        raise MissingOptionError("sinkDecreaseFactor", why)


def _most_in_flight(options: "KinesisOptions") -> int:
    if options.sink_rate_target == "requests":
        return options.max_in_flight_requests
    batch = options.max_batch_size
    if options.aggregation and batch == _LARGEST_REQUEST:
        # As for the sink, one that was given as the default is was left out.
        from penstock.async_sink import kinesis_aggregation_config

        batch = kinesis_aggregation_config().max_batch_size
    return options.max_in_flight_requests * batch
