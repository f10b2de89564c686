"""Lets Spark find the data source `dynamodb` by its name.

Spark imports every top-level package named `pyspark_*`, and one that fails on import disables discovery for all.
So nothing fails here: where the plugin cannot be imported there is no `DefaultSource`, and nothing else breaks.
"""

try:
    from penstock.spark_plugin import DynamoDbDataSource as DefaultSource
except Exception:  # whatever a broken installation raises must not disable others
    import logging

    logging.getLogger(__name__).warning("the dynamodb data source cannot be imported", exc_info=True)
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
