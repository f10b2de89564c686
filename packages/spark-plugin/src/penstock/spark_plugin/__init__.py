"""Amazon Kinesis for PySpark: data sources, writers and the staged Pipeline."""

import importlib
from typing import TYPE_CHECKING, Any

import penstock.spark_plugin._spark  # noqa: F401  # first: it says what is wrong with a PySpark, or without one
from penstock.spark_plugin._dynamodb_streams import DynamoDbStreamsDataSource
from penstock.spark_plugin._java import ensure_java
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._schema import CHANGE_SCHEMA, READ_SCHEMA, READ_SCHEMA_WITH_ENCRYPTION
from penstock.spark_plugin._settings import configure, missing_settings, recommended_settings
from penstock.spark_plugin._source import KinesisDataSource
from penstock.spark_plugin._telemetry import TRACEPARENT_PROPERTY, current_traceparent
from penstock.spark_plugin._write_only import DynamoDbDataSource, FirehoseDataSource, SqsDataSource

if TYPE_CHECKING:
    from penstock.spark_plugin._options.docs import migration_table, options_table
    from penstock.spark_plugin._reading.bounded.sql_function import register
    from penstock.spark_plugin._reading.executors.fleet_file import ExecutorReader
    from penstock.spark_plugin._reading.executors.readers import ExecutorReaders, start_readers
    from penstock.spark_plugin._reading.progress_listener import (
        KinesisProgress,
        KinesisProgressListener,
        ProgressMetrics,
        kinesis_progress,
        log_progress,
    )
    from penstock.spark_plugin._reading.reader_numbers import ReaderNumbers
    from penstock.spark_plugin._schemas.column import from_glue
    from penstock.spark_plugin._stages.declare.automatic import plan, run_staged
    from penstock.spark_plugin._stages.declare.data_stream import (
        DataStream,
        KeyedStream,
        PartitionWindowedStream,
        WindowedStream,
    )
    from penstock.spark_plugin._stages.declare.pipeline import Pipeline
    from penstock.spark_plugin._stages.run.pipeline_run import PipelineRun
    from penstock.spark_plugin._writing.records import split_record_id
    from penstock.spark_plugin._writing.sink_task import WriteSummary
    from penstock.spark_plugin._writing.value_rows import avro_schema

__all__ = [
    "CHANGE_SCHEMA",
    "READ_SCHEMA",
    "READ_SCHEMA_WITH_ENCRYPTION",
    "TRACEPARENT_PROPERTY",
    "DataStream",
    "DynamoDbDataSource",
    "DynamoDbStreamsDataSource",
    "ExecutorReader",
    "ExecutorReaders",
    "FirehoseDataSource",
    "KeyedStream",
    "KinesisDataSource",
    "KinesisOptions",
    "KinesisProgress",
    "KinesisProgressListener",
    "PartitionWindowedStream",
    "Pipeline",
    "PipelineRun",
    "ProgressMetrics",
    "ReaderNumbers",
    "SqsDataSource",
    "WindowedStream",
    "WriteSummary",
    "avro_schema",
    "configure",
    "current_traceparent",
    "ensure_java",
    "from_glue",
    "kinesis_progress",
    "log_progress",
    "migration_table",
    "missing_settings",
    "options_table",
    "plan",
    "recommended_settings",
    "register",
    "run_staged",
    "split_record_id",
    "start_readers",
]

# Spark imports this package in every process that plans or runs a task: these are only for the driver.
_OF_THE_DRIVER = {
    "avro_schema": "_writing.value_rows",
    "WriteSummary": "_writing.sink_task",
    "DataStream": "_stages.declare.data_stream",
    "KeyedStream": "_stages.declare.data_stream",
    "ExecutorReader": "_reading.executors.fleet_file",
    "ExecutorReaders": "_reading.executors.readers",
    "KinesisProgress": "_reading.progress_listener",
    "KinesisProgressListener": "_reading.progress_listener",
    "PartitionWindowedStream": "_stages.declare.data_stream",
    "Pipeline": "_stages.declare.pipeline",
    "PipelineRun": "_stages.run.pipeline_run",
    "ProgressMetrics": "_reading.progress_listener",
    "ReaderNumbers": "_reading.reader_numbers",
    "WindowedStream": "_stages.declare.data_stream",
    "from_glue": "_schemas.column",
    "kinesis_progress": "_reading.progress_listener",
    "log_progress": "_reading.progress_listener",
    "migration_table": "_options.docs",
    "options_table": "_options.docs",
    "plan": "_stages.declare.automatic",
    "register": "_reading.bounded.sql_function",
    "run_staged": "_stages.declare.automatic",
    "split_record_id": "_writing.records",
    "start_readers": "_reading.executors.readers",
}


def __getattr__(name: str) -> Any:
    if name in _OF_THE_DRIVER:
        return getattr(importlib.import_module(f"penstock.spark_plugin.{_OF_THE_DRIVER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
