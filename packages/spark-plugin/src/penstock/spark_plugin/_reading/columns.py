"""The columns of a read as other connectors name and order them."""

from collections.abc import Iterator

import pyarrow as pa

_DATABRICKS = (
    ("partitionKey", "partitionKey"),
    ("data", "data"),
    ("stream", "streamName"),
    ("shardId", "shardId"),
    ("sequenceNumber", "sequenceNumber"),
    ("approximateArrivalTimestamp", "approximateArrivalTimestamp"),
)
_AWS = tuple(
    (name, name) for name in ("data", "streamName", "partitionKey", "sequenceNumber", "approximateArrivalTimestamp")
)
CHANGES = "dynamodb-streams"
"""The layout of changes of a table's items; that of format dynamodb-streams, and no choice of a user's."""

_LAYOUTS = {"databricks": _DATABRICKS, "aws": _AWS}


def columns_of(layout: str) -> tuple[tuple[str, str], ...] | None:
    """Each column's name and the name of the same column of ours; None for all of ours."""
    return _LAYOUTS.get(layout)


def in_layout(batches: Iterator[pa.RecordBatch], layout: str) -> Iterator[pa.RecordBatch]:
    """Batches of our columns with those of a layout; nothing is copied but what changes are made of."""
    if layout == CHANGES:
        # Tasks that read Kinesis are spared it.
        from penstock.efo_consumer import to_change_batch

        return map(to_change_batch, batches)
    names = columns_of(layout)
    if names is None:
        return batches
    return (
        pa.RecordBatch.from_arrays([batch.column(ours) for _, ours in names], names=[name for name, _ in names])
        for batch in batches
    )
