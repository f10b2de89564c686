"""Found by PySpark by its name: the data source `kinesis`."""
