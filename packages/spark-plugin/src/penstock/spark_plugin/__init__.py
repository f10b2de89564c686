"""Amazon Kinesis for PySpark: data sources, writers and the staged Pipeline."""

from typing import TYPE_CHECKING, Any

from penstock.spark_plugin._java import ensure_java
from penstock.spark_plugin._option_docs import options_table
from penstock.spark_plugin._options import KinesisOptions
from penstock.spark_plugin._schema import READ_SCHEMA, READ_SCHEMA_WITH_ENCRYPTION
from penstock.spark_plugin._settings import configure, missing_settings, recommended_settings
from penstock.spark_plugin._source import KinesisDataSource
from penstock.spark_plugin._telemetry import TRACEPARENT_PROPERTY, current_traceparent

if TYPE_CHECKING:
    from penstock.spark_plugin._pipeline import Pipeline
    from penstock.spark_plugin._pipeline_run import PipelineRun

__all__ = [
    "READ_SCHEMA",
    "READ_SCHEMA_WITH_ENCRYPTION",
    "TRACEPARENT_PROPERTY",
    "KinesisDataSource",
    "KinesisOptions",
    "Pipeline",
    "PipelineRun",
    "configure",
    "current_traceparent",
    "ensure_java",
    "missing_settings",
    "options_table",
    "recommended_settings",
]


def __getattr__(name: str) -> Any:
    # Spark imports this package in every process that plans or runs a task: pipelines are only for the driver.
    if name == "Pipeline":
        from penstock.spark_plugin._pipeline import Pipeline

        return Pipeline
    if name == "PipelineRun":
        from penstock.spark_plugin._pipeline_run import PipelineRun

        return PipelineRun
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
