"""Aggregates of the Kinesis Producer Library, by an independent producer."""

from aws_kinesis_agg.aggregator import AggRecord


def aggregate(keys: list[str], explicit: str | None = None) -> bytes:
    """What an independent producer makes of records whose data is their key."""
    record = AggRecord()
    for key in keys:
        assert record.add_user_record(key, key.encode(), explicit)
    _, _, data = record.get_contents()
    return bytes(data)
