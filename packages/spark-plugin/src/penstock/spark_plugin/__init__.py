"""Amazon Kinesis for PySpark: data sources, writers and the staged Pipeline."""

from penstock.spark_plugin._java import ensure_java
from penstock.spark_plugin._option_docs import options_table
from penstock.spark_plugin._options import KinesisOptions
from penstock.spark_plugin._pipeline import Pipeline
from penstock.spark_plugin._schema import READ_SCHEMA, READ_SCHEMA_WITH_ENCRYPTION
from penstock.spark_plugin._settings import configure, missing_settings, recommended_settings
from penstock.spark_plugin._source import KinesisDataSource
from penstock.spark_plugin._telemetry import TRACEPARENT_PROPERTY, current_traceparent

__all__ = [
    "READ_SCHEMA",
    "READ_SCHEMA_WITH_ENCRYPTION",
    "TRACEPARENT_PROPERTY",
    "KinesisDataSource",
    "KinesisOptions",
    "Pipeline",
    "configure",
    "current_traceparent",
    "ensure_java",
    "missing_settings",
    "options_table",
    "recommended_settings",
]
