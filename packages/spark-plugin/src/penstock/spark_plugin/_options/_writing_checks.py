"""Relations between the options of writing."""

from typing import TYPE_CHECKING

from penstock.spark_plugin.errors import ContradictoryOptionsError, InvalidOptionError, MissingOptionError

if TYPE_CHECKING:
    from penstock.spark_plugin._options._kinesis_options import KinesisOptions

_LONGEST_KEY = 256


def check_writing(options: "KinesisOptions") -> None:
    """Check what a writer is told.

    Raises:
        OptionError: Naming the option, and the one that it contradicts.
    """
    _check_keys(options)
    _check_values(options)


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
