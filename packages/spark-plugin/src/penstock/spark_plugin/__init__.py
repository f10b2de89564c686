"""Amazon Kinesis for PySpark: data sources, writers and the staged Pipeline."""

import lazy_loader

import penstock.spark_plugin._spark  # noqa: F401  # first: it explains a missing or unusable PySpark

# On first use: Spark imports this package in every process that plans or runs a task.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
