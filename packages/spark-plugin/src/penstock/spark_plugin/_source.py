"""The data source `kinesis`."""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.parsing import check_use
from penstock.spark_plugin._options.spec import Use, field_name
from penstock.spark_plugin._schema import check_read_schema, read_schema
from penstock.spark_plugin._signals import limit_collections
from penstock.spark_plugin._spark import DataSourceStreamArrowWriter
from penstock.spark_plugin._user_errors import without_frames
from penstock.spark_plugin._write_only import refuse_overwrite
from penstock.spark_plugin.errors import OptionError, SparkPluginError

_NO_OPTIONS = (
    "no option is given at all, as for a table: saveAsTable, toTable and CREATE TABLE leave one without any, and a "
    "stream cannot be a table. Drop it; read by load(), or by CREATE TEMPORARY VIEW … USING kinesis OPTIONS (…), and "
    "write by save() or start()"
)
"""Spark keeps no options of a table for a source of Python, and does not tell it of the table. It does not ask for the
schema of one, either."""


class KinesisDataSource(DataSource):
    """Amazon Kinesis Data Streams, for `read`, `readStream`, `write` and `writeStream`.

    Spark makes it in several short-lived processes: each imports only the half that it runs.
    """

    @without_frames
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        limit_collections()
        # Whether it is read or written is not known yet, and rows that are written may name their streams.
        parsed = KinesisOptions.parse(options, stream_required=False)
        for name in ("deliveryStreamName", "queueUrl", "tableName"):
            if getattr(parsed, field_name(name)) is not None:
                raise OptionError.irrelevant(name, "streamName", "format 'kinesis'")
        self._eager = parsed.record_publisher == "efo" and parsed.efo_registration == "eager"
        if self._eager and parsed.job_id is None:
            # The query finds the lease that is made with the DataFrame by the job's id.
            parsed = replace(parsed, job_id=f"query-{uuid.uuid4().hex}")
        self._eager_leases: tuple[Any, ...] = ()
        self._parsed = parsed

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "kinesis"

    @without_frames
    def schema(self) -> StructType:
        """The columns that are read. Spark asks as the DataFrame is made: the moment of `efoRegistration=eager`."""
        self._require_stream("it says which stream is read")
        # Not called for a write: with this the frame is refused as it is made, not as it is used.
        check_use(self.options, Use.ANY_READ)
        if self._eager:
            from penstock.spark_plugin._reading.session.eager import register_eagerly

            # Spark hands this instance on, to whoever reads.
            self._eager_leases = register_eagerly(self._parsed)
        return read_schema(self._parsed)

    @without_frames
    def reader(self, schema: StructType) -> DataSourceReader:
        """A bounded read: what the stream holds from `initialPosition` to now."""
        self._require_stream()
        if self._eager_leases:
            # Refused below, but Spark did not say before what the frame is for.
            from penstock.spark_plugin._reading.session.eager import release_eager

            release_eager(self._parsed, self._eager_leases)
        check_use(self.options, Use.READ)
        check_read_schema(schema, self._parsed)
        from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader

        return KinesisBatchReader(self._parsed)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A read that follows the stream. What is wrong with it is raised by the first call of the reader."""
        from penstock.spark_plugin._reading.stream.plain_reader import RefusedStreamReader, stream_reader

        try:
            self._require_stream()
            check_use(self.options, Use.READ_STREAM)
            check_read_schema(schema, self._parsed)
            return stream_reader(self._parsed)
        except SparkPluginError as error:
            return RefusedStreamReader(error)

    @without_frames
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer of a DataFrame."""
        check_use(self.options, Use.WRITE)
        refuse_overwrite(overwrite)
        if not self.options and "streamName" not in schema.names:
            raise OptionError.missing("streamName", _NO_OPTIONS)
        from penstock.spark_plugin._writing.writer import KinesisBatchWriter

        return KinesisBatchWriter(self._parsed, schema)

    @without_frames
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """A writer of micro-batches."""
        check_use(self.options, Use.WRITE)
        refuse_overwrite(overwrite, "outputMode('append'), or 'update'")
        from penstock.spark_plugin._writing.writer import KinesisStreamWriter

        return KinesisStreamWriter(self._parsed, schema)

    def _require_stream(self, why: str = _NO_OPTIONS) -> None:
        if not self._parsed.stream_name and self._parsed.stream_name_pattern is None:
            raise OptionError.missing("streamName", why)
