"""The data sources that are only written: `firehose`, `sqs` and `dynamodb`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter
from pyspark.sql.types import StructType

from penstock.spark_plugin._options.foreign import translate
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.parsing import find_option, nearest
from penstock.spark_plugin._options.services import PROOFS
from penstock.spark_plugin._options.spec import Use, field_name
from penstock.spark_plugin._options.table import OPTIONS, SPARK_OWN
from penstock.spark_plugin._signals import limit_collections
from penstock.spark_plugin._spark import DataSourceStreamArrowWriter
from penstock.spark_plugin.errors import OptionError, SparkPluginError

_SERVICES = {"sinkEndpoint", "jobId", "traceparent", *PROOFS}
_OF_STREAMS_ALONE = {*("streamArn", "partitionKeyColumn", "randomPartitionKey", "aggregation", "wireFormat")}


@dataclass(frozen=True)
class _Format:
    """A format that is only written."""

    destination: str
    """The option that names its destination."""
    written: str
    """What it writes to."""
    instead: str
    """Why it cannot be read, and what to read instead."""
    not_taken: frozenset[str] = frozenset()
    """Options of writing that have no effect on it."""

    @cached_property
    def taken(self) -> frozenset[str]:
        """The options that it takes."""
        others = {one.destination for one in _FORMATS.values()} - {self.destination}
        return frozenset(
            spec.name
            for spec in OPTIONS
            if Use.WRITE in spec.uses
            and (spec.name in _SERVICES or spec.group in ("stream", "credentials", "records", "sending"))
            and spec.name not in _OF_STREAMS_ALONE | others | self.not_taken
        )


_OF_SCHEMAS = frozenset({"glueEndpointUrl", *(spec.name for spec in OPTIONS if spec.name.startswith("schema"))})
_OF_VALUES = frozenset({"valueFormat", "valueColumns", "csvDelimiter", "recordDelimiter", "recordIds"})
_FORMATS = {
    "firehose": _Format(
        "deliveryStreamName",
        "delivery streams",
        "a delivery stream gives its records to its destination. Read that (such as spark.read.json of its S3 prefix), "
        "or the Kinesis stream that feeds it with format 'kinesis'",
    ),
    "sqs": _Format(
        "queueUrl",
        "queues",
        "a message is gone once it is received and deleted, so that a query could not read it again. Send the records "
        "to a Kinesis stream too, and read that with format 'kinesis'",
        _OF_SCHEMAS | {"streamName"},
    ),
    "dynamodb": _Format(
        "tableName",
        "tables",
        "read the changes of the table with format 'dynamodb-streams'",
        _OF_SCHEMAS | _OF_VALUES | {"streamName"},
    ),
}


def write_only_options(kind: str, options: Mapping[str, str]) -> KinesisOptions:
    """The options of a writer of a format that is only written.

    Raises:
        OptionError: an option is for reading, or has no effect on the format.
        OptionError: as in `KinesisOptions.parse`.
    """
    form, given = _FORMATS[kind], dict[str, str]()
    where = f"format {kind!r}, which writes to {form.written}"
    by_name = {key.lower(): text for key, text in options.items()}
    for key, text in options.items():
        if key.lower() in SPARK_OWN:
            continue
        found = find_option(key)
        names = {found[0].name} if found is not None else translate(key, text, by_name)
        if names is None:
            raise OptionError.unknown(key, nearest(key, form.taken))
        if set(names) - form.taken:
            raise OptionError.irrelevant(key, nearest(key, form.taken), where)
        if form.destination in names and "streamName" in form.taken and "streamname" in by_name:
            raise OptionError.contradictory(form.destination, "streamName", "they say the same; give one")
        given[key] = text
    parsed = KinesisOptions.parse(given, stream_required=False)
    if parsed.sink_rate_strategy == "shards":
        rule = f"aimd or none: {form.written} have no shards to pace"
        raise OptionError.invalid("sinkRateStrategy", "shards", rule)
    field = field_name(form.destination)
    destination: str | None = getattr(parsed, field)
    if destination is None:
        return parsed
    # Messages of errors show the name that the user wrote.
    written = {**parsed.written, "streamName": form.destination}
    # With the name of a table the options would name its stream.
    changed: dict[str, Any] = {field: None, "stream_name": (destination,), "written": written}
    return replace(parsed, **changed)


class _WriteOnlyDataSource(DataSource):
    """A destination for `write` and `writeStream`."""

    _kind: ClassVar[str]

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        limit_collections()
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return cls._kind

    def _refuse(self) -> NoReturn:
        raise SparkPluginError.of("WRITE_ONLY", format=self._kind, reason=_FORMATS[self._kind].instead)

    def schema(self) -> StructType:
        """There is nothing to read. Raises: SparkPluginError."""
        self._refuse()

    def reader(self, schema: StructType) -> NoReturn:
        """There is nothing to read. Raises: SparkPluginError."""
        self._refuse()

    def streamReader(self, schema: StructType) -> NoReturn:
        """There is nothing to read. Raises: SparkPluginError."""
        self._refuse()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer of a DataFrame."""
        refuse_overwrite(overwrite)
        from penstock.spark_plugin._writing.writer import KinesisBatchWriter

        return KinesisBatchWriter(write_only_options(self._kind, self._given), schema, kind=self._kind)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """A writer of micro-batches."""
        refuse_overwrite(overwrite, "outputMode('append'), or 'update'")
        from penstock.spark_plugin._writing.writer import KinesisStreamWriter

        return KinesisStreamWriter(write_only_options(self._kind, self._given), schema, kind=self._kind)


class FirehoseDataSource(_WriteOnlyDataSource):
    """Amazon Data Firehose, for `write` and `writeStream`."""

    _kind = "firehose"


class SqsDataSource(_WriteOnlyDataSource):
    """Amazon SQS, for `write` and `writeStream`."""

    _kind = "sqs"


class DynamoDbDataSource(_WriteOnlyDataSource):
    """A table of Amazon DynamoDB, for `write` and `writeStream`."""

    _kind = "dynamodb"


def refuse_overwrite(overwrite: bool, cure: str = "mode('append')") -> None:
    """Raises: SparkPluginError, for a mode that would have to delete records: `complete` of a query is one."""
    if overwrite:
        raise SparkPluginError(f"a stream cannot be overwritten: write with {cure}")
