"""What the sink packs into aggregates, the consumer takes apart."""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.async_sink import AggregationConfig, KinesisRequestEntry, KinesisStreamsSink
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import Consumer
from penstock.emulator.testing import running_emulator


@pytest.mark.parametrize("how", [{"name": "billing"}, {"efo": "billing"}], ids=["polling", "fan-out"])
async def test_every_user_record_is_read_once_with_its_key(tmp_path: Path, how: dict[str, Any]) -> None:
    """Over several shards, with keys of any script and explicit hash keys, one aggregate holds hundreds of them."""
    random = Random(3)
    entries = [
        KinesisRequestEntry(
            b"row %d" % number,
            random.choice(["LHR", "ключ", "東京", f"k{number % 50}"]),
            str(random.randrange(2**128)) if number % 7 == 0 else None,
        )
        for number in range(5_000)
    ]
    with running_emulator(tls=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=4)
        client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        aws = emulator_options(emulator.endpoint_url)
        async with KinesisStreamsSink(aws, "flights", aggregation=AggregationConfig()).create_writer() as writer:
            await writer.write_many(entries)
        put = emulator.call(lambda: sum(len(shard.records) for shard in emulator.kinesis.streams["flights"].shards))
        assert put < 50
        read: Counter[tuple[bytes, str]] = Counter()
        options: dict[str, Any] = {"aws": aws, "start": "TRIM_HORIZON", "checkpoints": tmp_path / "c.db", **how}
        if "efo" in how:
            options["registry"] = tmp_path / "r.db"
        async with asyncio.timeout(30), Consumer("flights", **options) as consumer:
            async for batch in consumer:
                columns = [batch.records.column(name).to_pylist() for name in ("data", "partitionKey")]
                read.update(zip(*columns, strict=True))
                if read.total() >= len(entries):
                    break
    assert read == Counter((entry.data, entry.partition_key) for entry in entries)
