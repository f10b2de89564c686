"""Which attributes metrics about shards have: by default those of the stream alone."""

from __future__ import annotations

import os
from functools import cache

PER_SHARD = "PENSTOCK_METRICS_PER_SHARD"
"""Variable of the environment: `true` gives metrics the attribute `shard`, and so a time series for each shard."""


@cache
def per_shard() -> bool:
    """Whether this process tells its shards apart in metrics. Streams have thousands of shards, and backends a bill."""
    return os.environ.get(PER_SHARD, "").strip().lower() in ("1", "true", "yes")


def of_shard(stream: str, shard_id: str) -> dict[str, str]:
    """The attributes of what is counted for a shard."""
    return {"stream": stream, "shard": shard_id} if per_shard() else {"stream": stream}
