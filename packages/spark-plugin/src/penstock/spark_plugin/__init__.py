"""Amazon Kinesis for PySpark: data sources, writers and the staged Pipeline."""

import importlib
from typing import TYPE_CHECKING, Any

from penstock.spark_plugin._java import ensure_java
from penstock.spark_plugin._option_docs import options_table
from penstock.spark_plugin._options import KinesisOptions
from penstock.spark_plugin._schema import READ_SCHEMA, READ_SCHEMA_WITH_ENCRYPTION
from penstock.spark_plugin._settings import configure, missing_settings, recommended_settings
from penstock.spark_plugin._source import KinesisDataSource
from penstock.spark_plugin._telemetry import TRACEPARENT_PROPERTY, current_traceparent

if TYPE_CHECKING:
    from penstock.spark_plugin._automatic import plan, run_staged
    from penstock.spark_plugin._data_stream import DataStream, KeyedStream, WindowedStream
    from penstock.spark_plugin._partition_window import PartitionWindowedStream
    from penstock.spark_plugin._pipeline import Pipeline
    from penstock.spark_plugin._pipeline_run import PipelineRun

__all__ = [
    "READ_SCHEMA",
    "READ_SCHEMA_WITH_ENCRYPTION",
    "TRACEPARENT_PROPERTY",
    "DataStream",
    "KeyedStream",
    "KinesisDataSource",
    "KinesisOptions",
    "PartitionWindowedStream",
    "Pipeline",
    "PipelineRun",
    "WindowedStream",
    "configure",
    "current_traceparent",
    "ensure_java",
    "missing_settings",
    "options_table",
    "plan",
    "recommended_settings",
    "run_staged",
]

# Spark imports this package in every process that plans or runs a task: pipelines are only for the driver.
_OF_THE_DRIVER = {
    "DataStream": "_data_stream",
    "KeyedStream": "_data_stream",
    "PartitionWindowedStream": "_partition_window",
    "Pipeline": "_pipeline",
    "PipelineRun": "_pipeline_run",
    "WindowedStream": "_data_stream",
    "plan": "_automatic",
    "run_staged": "_automatic",
}


def __getattr__(name: str) -> Any:
    if name in _OF_THE_DRIVER:
        return getattr(importlib.import_module(f"penstock.spark_plugin.{_OF_THE_DRIVER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
