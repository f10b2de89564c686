"""The writers of all formats: each write task returns when all of its records are accepted."""

import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

import pyarrow as pa
from opentelemetry import context as context_api
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.async_sink import FirehoseSink, KinesisStreamsSink, RowFault
from penstock.async_sink.dead_letters import NOT_ENCODED
from penstock.async_sink.errors import SinkOptionError
from penstock.efo_consumer import SchemaVersion
from penstock.rpc import LoopThread
from penstock.spark_plugin._connections import aws_options, caller_location, shared_session
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.spec import option_name
from penstock.spark_plugin._schema import sink_columns
from penstock.spark_plugin._signals import limit_collections
from penstock.spark_plugin._spark import DataSourceStreamArrowWriter
from penstock.spark_plugin._telemetry import TRACEPARENT_PROPERTY, parent_context, task_property, tracer
from penstock.spark_plugin._user_errors import with_remedies
from penstock.spark_plugin._writing.dead_letters import (
    DeadLetterFile,
    DeadLetterFileHandler,
    dead_letter_folder,
    letter,
)
from penstock.spark_plugin._writing.records import RecordMaker, Records, WriteAttempt, bad_rows, by_stream, this_attempt
from penstock.spark_plugin._writing.sink_task import SinkTask, WriteSummary, make_sink, sink_config, total
from penstock.spark_plugin._writing.value_text import compute, decoded, is_text, json_rows
from penstock.spark_plugin._writing.values import check_field_types, check_value_fields
from penstock.spark_plugin.errors import OptionError, SparkPluginError

__all__ = ["KinesisBatchWriter", "KinesisStreamWriter", "WriteSummary", "total"]

_log = logging.getLogger(__name__)
_WORKER_LOGGING = "PYSPARK_SPARK_SESSION_UUID"
"""Set by Spark with `spark.sql.pyspark.worker.logging.enabled`."""


class _Writer:
    _is_stream = False

    @with_remedies
    def __init__(self, options: KinesisOptions, schema: StructType, *, kind: str = "kinesis") -> None:
        self._options = options
        self._kind = kind
        if options.glue_endpoint_url is not None and options.schema_registry is None:
            raise OptionError.missing("schemaRegistry", "$glueEndpointUrl belongs to it")
        if kind == "sqs" and options.value_format not in (None, "json", "csv"):
            raise OptionError.invalid("valueFormat", options.value_format or "", "json or csv: a message is a text")
        self._columns = sink_columns(schema, options, kind)
        if kind == "dynamodb":
            check_field_types(schema.fields, nested=True)
        self._schema: SchemaVersion | str | None = None
        if options.value_format is not None:
            fields = [schema.fields[index] for index in self._columns.value]
            self._schema = check_value_fields(fields, options)
            if self._schema is not None:
                _log.info("the schema of %s is %s", self._destination, self._schema)
        self._folder = None
        if options.dead_letter_path is not None:
            self._folder = dead_letter_folder(options.dead_letter_path, options.aws_mapping())
        # Refused here, by the option's name, and not in the tasks.
        try:
            self._max_record_bytes = sink_config(options, kind).max_record_size_in_bytes
            if options.stream_name:
                make_sink(options, kind=kind)
        except SinkOptionError as error:
            raise _option_error(error) from error
        # Once, on the driver: executors may have another environment.
        self._caller = None
        if options.sink_endpoint is not None:
            self._caller = caller_location(options, self._kind)
        self._write_id = f"write-{uuid.uuid4().hex}"

    @property
    def _destination(self) -> str:
        return self._options.stream_name[0] if self._options.stream_name else "the streams of its rows"

    @with_remedies
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteSummary:
        """Write a task's rows, and return when every one of them is acknowledged or a dead letter on disk.

        Raises:
            SparkPluginError: a row cannot be written as it is, without a `deadLetterPath`.
            SparkPluginError: the destination took nothing for `stallTimeout`.
            SparkPluginError: dead letters cannot be kept.
            penstock.async_sink.errors.SinkError: a record was refused permanently; the message names it.
        """
        limit_collections()
        options = self._options
        parent = parent_context(task_property(TRACEPARENT_PROPERTY), options.traceparent)
        with tracer().start_as_current_span(
            "spark_plugin.write_partition",
            context=parent if parent is not None else context_api.get_current(),
            attributes={"penstock.streams": list(options.stream_name)},
        ) as span:
            attempt = this_attempt(options.job_id, self._write_id, is_stream=self._is_stream)
            letters = None if self._folder is None else DeadLetterFile(self._folder, attempt)
            try:
                summary = self._write(iterator, attempt, letters)
            except BaseException:
                if letters is not None:
                    letters.discard()
                raise
            span.set_attribute("penstock.records", summary.records)
            return summary

    def _write(
        self, iterator: Iterator[pa.RecordBatch], attempt: WriteAttempt, letters: DeadLetterFile | None
    ) -> WriteSummary:
        options, began = self._options, monotonic()
        maker = RecordMaker(
            self._columns,
            options,
            kind=self._kind,
            schema=self._schema,
            id_prefix=attempt.record_prefix if options.record_ids else "",
        )
        default = options.stream_name[0] if options.stream_name else None
        with LoopThread("async-sink") as loop:
            task = SinkTask(self._sinks(letters), stall_seconds=options.stall_timeout, gateway=options.sink_endpoint)
            try:
                rules: Any = {"kinesis": KinesisStreamsSink, "firehose": FirehoseSink}.get(self._kind)
                for batch in iterator:
                    if rules is None:
                        # The writer has asked the service for the key of its table. A task without rows does not ask.
                        assert default is not None
                        rules = loop.call(task.entries(default))
                    good = self._without_bad(maker.of(batch), default, letters, rules.row_faults)
                    for stream, records in by_stream(good, default):
                        if stream is not None and records.batch.num_rows:
                            loop.call(task.write(stream, records.batch))
                loop.call(task.finish())
            except BaseException:
                loop.call(task.abandon())
                raise
        if letters is not None:
            letters.commit()
        dead_letters = letters.count if letters is not None else 0
        return replace(task.written, dead_letters=dead_letters, seconds=monotonic() - began)

    def _sinks(self, letters: DeadLetterFile | None) -> "Callable[[str], object]":
        def make(stream: str) -> object:
            terminal = None if letters is None else lambda: DeadLetterFileHandler(letters, stream, self._kind)
            # Made of the options by each writer, it would look for configuration and assume roles each time.
            session = None if self._options.sink_endpoint is not None else shared_session(aws_options(self._options))
            return make_sink(
                self._options,
                stream,
                kind=self._kind,
                terminal=terminal,
                session=session,
                caller=self._caller,
            )

        return make

    def _without_bad(
        self,
        records: Records,
        default: str | None,
        letters: DeadLetterFile | None,
        row_faults: Callable[[Any, int], Iterator[RowFault]],
    ) -> Records:
        """The records that a destination can take; the others are dead letters, or fail the task."""
        bad = bad_rows(
            records.batch,
            records.streams,
            row_faults=row_faults,
            max_record_bytes=self._max_record_bytes,
            needs_stream=default is None,
            faults=records.faults,
        )
        if not bad:
            return records
        if letters is None:
            row, reason = records.first_row + bad[0].index, bad[0].reason
            raise SparkPluginError.of("UNWRITABLE_ROW", row=row, reason=reason)
        streams, rows = records.streams, pa.array([one.index for one in bad], pa.int64())
        taken = records.batch.take(rows)
        if self._kind == "dynamodb":
            data, fields = json_rows(taken).cast(pa.binary()).to_pylist(), dict[str, list[Any]]()
        else:
            columns = dict(zip(taken.schema.names, taken.columns, strict=True))
            data = columns.pop("body" if self._kind == "sqs" else "data").cast(pa.binary()).to_pylist()
            fields = {
                name: decoded(column) if is_text(column.type) else column.to_pylist()
                for name, column in columns.items()
            }
        named = (
            [default] * len(bad) if streams is None else decoded(compute.fill_null(streams.take(rows), default or ""))
        )
        kept = []
        for place, one in enumerate(bad):
            values = {name: column[place] for name, column in fields.items()}
            kept.append(
                letter(
                    data[place],
                    values,
                    named[place] or None,
                    kind=self._kind,
                    reason=NOT_ENCODED if one.index in records.faults or self._kind == "dynamodb" else "bad row",
                    error_message=one.reason,
                    row=records.first_row + one.index,
                )
            )
        letters.add(kept)
        wrong = {one.index for one in bad}
        good = pa.array([index not in wrong for index in range(records.batch.num_rows)])
        left = None if streams is None else compute.filter(streams, good)
        return Records(records.batch.filter(good), left, records.first_row)

    def _log_commit(self, messages: Sequence[WriterCommitMessage | None], what: str) -> None:
        limit_collections()
        if _WORKER_LOGGING in os.environ:
            # Spark collects the log of this process, in which users cannot set a level.
            _log.setLevel(logging.INFO)
        _log.info("wrote %s to %s: %s", what, self._destination, total(messages))

    def _log_abort(self, messages: Sequence[WriterCommitMessage | None], what: str) -> None:
        done = [one for one in messages if isinstance(one, WriteSummary)]
        _log.warning(
            "%s failed: %d task(s) that ended before have written %s to %s, and others may have written records too; "
            "all of these are written again when it is run again",
            what, len(done), total(done), self._destination,
        )  # fmt: skip


class KinesisBatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame, to streams or what else the kind names."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Note what was written: it is in the stream since each task ended."""
        self._log_commit(messages, "a DataFrame")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Note what may have been written."""
        self._log_abort(messages, "the write of a DataFrame")


class KinesisStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes each micro-batch; at least once, since Spark may run a micro-batch again."""

    _is_stream = True

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Note what was written: it is in the stream since each task ended."""
        self._log_commit(messages, f"micro-batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Note what may have been written."""
        self._log_abort(messages, f"micro-batch {batchId}")


def _option_error(error: SinkOptionError) -> OptionError:
    """An error of the sink about one of its options, as one about the data source's."""
    option = option_name(error.option)
    if error.value is None or error.bound is None:
        return OptionError.unusable(option, error.reason)
    if error.option == "max_buffered_bytes":
        # It follows from others, and is not an option: only a request may be too large for it.
        return OptionError.invalid("maxBatchSizeInBytes", error.bound, f"at most {error.value}")
    by = f"${option_name(error.bounded_by)}, " if error.bounded_by else ""
    return OptionError.invalid(option, error.value, f"{error.rule} {by}{error.bound}")
