"""Amazon Kinesis for PySpark: data sources, writers and the staged Pipeline."""
