"""The data source `kinesis`."""

import uuid
from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from penstock.spark_plugin._options import KinesisOptions
from penstock.spark_plugin._schema import check_read_schema, read_schema
from penstock.spark_plugin.errors import SparkPluginError


class KinesisDataSource(DataSource):
    """Amazon Kinesis Data Streams, for `read`, `readStream`, `write` and `writeStream`.

    Spark makes it in several short-lived processes: each imports only the half that it runs.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        parsed = KinesisOptions.parse(options)
        self._eager = parsed.record_publisher == "efo" and parsed.efo_registration == "eager"
        if self._eager and parsed.job_id is None:
            # The query finds the lease that is made with the DataFrame by the job's id.
            parsed = replace(parsed, job_id=f"query-{uuid.uuid4().hex}")
        self._parsed = parsed

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "kinesis"

    def schema(self) -> StructType:
        """The columns that are read. Spark asks as the DataFrame is made: the moment of `efoRegistration=eager`."""
        if self._eager:
            from penstock.spark_plugin._session import register_eagerly

            register_eagerly(self._parsed)
        return read_schema(self._parsed)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A bounded read: what the stream holds from `initialPosition` to now."""
        check_read_schema(schema, self._parsed)
        from penstock.spark_plugin._batch_reader import KinesisBatchReader

        return KinesisBatchReader(self._parsed)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A read that follows the stream."""
        check_read_schema(schema, self._parsed)
        from penstock.spark_plugin._stream_reader import KinesisStreamReader

        return KinesisStreamReader(self._parsed)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer of a DataFrame."""
        _refuse_overwrite(overwrite)
        from penstock.spark_plugin._writer import KinesisBatchWriter

        return KinesisBatchWriter(self._parsed, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """A writer of micro-batches."""
        _refuse_overwrite(overwrite)
        from penstock.spark_plugin._writer import KinesisStreamWriter

        return KinesisStreamWriter(self._parsed, schema)


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise SparkPluginError("a stream cannot be overwritten: write with mode('append')")
