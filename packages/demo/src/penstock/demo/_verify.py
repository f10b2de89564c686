"""Read `delays` back with plain boto3, and compare it with what it must hold."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd


def read_stream(client: Any, stream_name: str) -> Iterator[bytes]:
    """The data of every record of a stream, shard after shard, oldest first, up to the tip of this moment."""
    for page in client.get_paginator("list_shards").paginate(StreamName=stream_name):
        for shard in page["Shards"]:
            yield from _read_shard(client, stream_name, shard["ShardId"])


def _read_shard(client: Any, stream_name: str, shard_id: str) -> Iterator[bytes]:
    answer = client.get_shard_iterator(StreamName=stream_name, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON")
    iterator = answer["ShardIterator"]
    while iterator:
        answer = client.get_records(ShardIterator=iterator, Limit=10_000)
        for record in answer["Records"]:
            yield record["Data"]
        if answer.get("MillisBehindLatest", 0) == 0 and not answer["Records"]:
            return
        iterator = answer.get("NextShardIterator")


@dataclass(frozen=True)
class Comparison:
    """How what is there differs from what should be there. Counts of flights, except `out`."""

    out: int
    """Records in the stream."""
    expected: int
    missing: int
    duplicated: int
    """Records beyond the first of their flight."""
    unexpected: int
    wrong: int
    """Flights whose values differ."""

    @property
    def is_complete(self) -> bool:
        """Whether everything expected is there and right. Duplicates are allowed: delivery is at least once."""
        return self.missing == self.unexpected == self.wrong == 0


def _same(actual: Any, expected: Any) -> bool:
    if expected is None or (isinstance(expected, float) and math.isnan(expected)):
        return actual is None
    if isinstance(expected, float):
        return actual is not None and math.isclose(float(actual), expected, rel_tol=1e-9, abs_tol=1e-9)
    return bool(actual == expected)


def compare(records: Iterator[bytes], expected: pd.DataFrame) -> Comparison:
    """Compare records, JSON with an `id`, with a table indexed by id. Columns that a record lacks are null."""
    wanted: Mapping[int, dict[str, Any]] = expected.to_dict(orient="index")  # type: ignore[assignment]  # ids are integers
    seen: Counter[int] = Counter()
    wrong: set[int] = set()
    for data in records:
        row = json.loads(data)
        seen[row["id"]] += 1
        values = wanted.get(row["id"])
        if values is not None and not all(_same(row.get(name), value) for name, value in values.items()):
            wrong.add(row["id"])
    return Comparison(
        out=seen.total(),
        expected=len(wanted),
        missing=len(wanted.keys() - seen.keys()),
        duplicated=seen.total() - len(seen),
        unexpected=len(seen.keys() - wanted.keys()),
        wrong=len(wrong),
    )
