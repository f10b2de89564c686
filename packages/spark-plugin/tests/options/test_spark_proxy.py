from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from penstock.aws.testing import running_proxy

HOST = "kinesis.invalid"


@pytest.mark.parametrize("publisher", ["polling", "efo"])
def test_driver_and_tasks_reach_kinesis_by_the_proxy_alone(
    spark: SparkSession,
    make_stream: Callable[[int], Any],
    collected: Any,
    until: Callable[..., None],
    tmp_path: Path,
    publisher: str,
) -> None:
    """A stream is read, and a frame written, at a host that only the proxy knows; no plan shows its password."""
    source, target = make_stream(2), make_stream(1)
    source.put(20)
    url = urlsplit(source.emulator.endpoint_url)
    with running_proxy("job", "hush") as proxy:
        proxy.hosts[HOST] = (url.hostname or "", url.port or 0)
        behind = {"endpointUrl": f"http://{HOST}", "proxyUrl": proxy.url}
        options = source.options() | behind | {"initialPosition": "TRIM_HORIZON", "recordPublisher": publisher}
        if publisher == "efo":
            options |= {"efoConsumerName": "tests", "registryStore": str(tmp_path / "registry.db")}
        frame = spark.readStream.format("kinesis").options(**options).load()
        writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(tmp_path / "read"))
        reading = writer.start()
        until(lambda: len(collected.keys) >= 20, "the records do not arrive", query=reading)
        reading.stop()
        bounded = spark.read.format("kinesis").options(**source.options() | behind).load()
        rows = bounded.select("data", "partitionKey")
        rows.write.format("kinesis").options(**target.options() | behind).mode("append").save()
        assert "hush" not in bounded._jdf.queryExecution().toString()
        assert proxy.refused == 0
    assert sorted(target.held()) == sorted(source.put_keys.values())
