# Each name is imported where it is first used: `lazy_loader` reads this file to find it.
from ._dynamodb_streams import DynamoDbStreamsDataSource
from ._java import ensure_java
from ._options.docs import migration_table, options_table
from ._options.kinesis_options import KinesisOptions
from ._reading.bounded.sql_function import register
from ._reading.executors.fleet_file import ExecutorReader
from ._reading.executors.readers import ExecutorReaders, start_readers
from ._reading.progress_listener import (
    KinesisProgress,
    KinesisProgressListener,
    ProgressMetrics,
    kinesis_progress,
    log_progress,
)
from ._reading.reader_numbers import ReaderNumbers
from ._schema import CHANGE_SCHEMA, READ_SCHEMA, READ_SCHEMA_WITH_ENCRYPTION
from ._schemas.column import from_glue
from ._settings import configure, missing_settings, recommended_settings
from ._source import KinesisDataSource
from ._stages.declare.automatic import plan, run_staged
from ._stages.declare.data_stream import DataStream, KeyedStream, PartitionWindowedStream, WindowedStream
from ._stages.declare.pipeline import Pipeline
from ._stages.run.pipeline_run import PipelineRun
from ._telemetry import TRACEPARENT_PROPERTY, current_traceparent
from ._write_only import DynamoDbDataSource, FirehoseDataSource, SqsDataSource
from ._writing.records import split_record_id
from ._writing.sink_task import WriteSummary
from ._writing.value_rows import avro_schema

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
