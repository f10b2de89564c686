"""The data source `firehose`."""

import difflib
from collections.abc import Mapping
from typing import NoReturn

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter
from pyspark.sql.types import StructType

from penstock.spark_plugin._options.foreign import translate
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.parsing import find_option
from penstock.spark_plugin._options.table import OPTIONS, SPARK_OWN
from penstock.spark_plugin._signals import limit_collections
from penstock.spark_plugin._spark import DataSourceStreamArrowWriter
from penstock.spark_plugin.errors import OptionError, SparkPluginError

_SERVICES = {
    "sinkEndpoint",
    "serviceToken",
    "serviceTokenFile",
    "serviceCaFile",
    "serviceCertificateFile",
    "servicePrivateKeyFile",
    "jobId",
    "traceparent",
}
_OF_STREAMS_ALONE = {
    "streamArn",
    "streamNamePattern",
    "partitionKeyColumn",
    "randomPartitionKey",
    "aggregation",
    "wireFormat",
}
_TAKEN = {
    spec.name
    for spec in OPTIONS
    if spec.name in _SERVICES
    or (spec.group in ("stream", "credentials", "writing") and spec.name not in _OF_STREAMS_ALONE)
}
_WHERE = "format 'firehose', which writes to delivery streams"


def firehose_options(options: Mapping[str, str]) -> KinesisOptions:
    """The options of a writer to delivery streams.

    Raises:
        OptionError: an option is for reading, or for Kinesis streams only.
        OptionError: as in `KinesisOptions.parse`.
    """
    given: dict[str, str] = {}
    by_name = {key.lower(): text for key, text in options.items()}
    for key, text in options.items():
        if key.lower() in SPARK_OWN:
            continue
        found = find_option(key)
        if found is not None:
            names = {found[0].name}
        else:
            translated = translate(key, text, by_name)
            if translated is None:
                raise OptionError.unknown(key, _nearest(key))
            names = {one.name for one in translated}
        if names - _TAKEN:
            raise OptionError.irrelevant(key, _nearest(key), _WHERE)
        if "deliveryStreamName" in names:
            if "streamname" in by_name:
                raise OptionError.contradictory("deliveryStreamName", "streamName", "they say the same; give one")
            key = "streamName"
        given[key] = text
    parsed = KinesisOptions.parse(given, stream_required=False)
    if parsed.sink_rate_strategy == "shards":
        raise OptionError.invalid("sinkRateStrategy", "shards", "aimd or none: a delivery stream has no shards to pace")
    return parsed


def _nearest(key: str) -> str | None:
    lower = {name.lower(): name for name in _TAKEN}
    close = difflib.get_close_matches(key.lower(), list(lower), n=1)
    return lower[close[0]] if close else None


class FirehoseDataSource(DataSource):
    """Amazon Data Firehose, for `write` and `writeStream`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        limit_collections()
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "firehose"

    def schema(self) -> StructType:
        """There is nothing to read. Raises: SparkPluginError."""
        raise SparkPluginError.of("FIREHOSE_READ")

    def reader(self, schema: StructType) -> NoReturn:
        """There is nothing to read. Raises: SparkPluginError."""
        raise SparkPluginError.of("FIREHOSE_READ")

    def streamReader(self, schema: StructType) -> NoReturn:
        """There is nothing to read. Raises: SparkPluginError."""
        raise SparkPluginError.of("FIREHOSE_READ")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer of a DataFrame."""
        refuse_overwrite(overwrite)
        from penstock.spark_plugin._writing.writer import KinesisBatchWriter

        return KinesisBatchWriter(firehose_options(self._given), schema, firehose=True)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """A writer of micro-batches."""
        refuse_overwrite(overwrite, "outputMode('append'), or 'update'")
        from penstock.spark_plugin._writing.writer import KinesisStreamWriter

        return KinesisStreamWriter(firehose_options(self._given), schema, firehose=True)


def refuse_overwrite(overwrite: bool, cure: str = "mode('append')") -> None:
    """Raises: SparkPluginError, for a mode that would have to delete records: `complete` of a query is one."""
    if overwrite:
        raise SparkPluginError(f"a stream cannot be overwritten: write with {cure}")
