"""The record browser: what is shown of records, to whom, and where that is written down."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import aws_kinesis_agg.aggregator as kpl
import boto3
import fastavro
import pytest
from console_visits import browsing, shown
from console_world import HOSTILE, console

from penstock.aws import AwsOptions
from penstock.efo_consumer import encode_glue_record
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.rpc import ServerSecurity
from penstock.services.console.errors import ConsoleOptionError

SHARD = "shardId-000000000000"
SCHEMA = {"type": "record", "name": "Flight", "fields": [{"name": "number", "type": "string"}]}


@pytest.fixture(scope="module")
def kinesis() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        client = running.client()
        client.create_stream(StreamName="flights", ShardCount=1)
        for data in (b"UA1545", b'{"number": "UA1714"}', HOSTILE.encode(), b"\x00\x01\xff", avro({"number": "DL461"})):
            client.put_record(StreamName="flights", PartitionKey="EWR", Data=data)
        aggregate = kpl.RecordAggregator()
        for number in range(3):
            aggregate.add_user_record(f"key-{number}", f"part {number}".encode())
        key, _, data = aggregate.clear_and_get().get_contents()
        client.put_record(StreamName="flights", PartitionKey=key, Data=data)
        yield running


def avro(value: dict[str, Any]) -> bytes:
    import io

    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(SCHEMA), value)
    return body.getvalue()


@asynccontextmanager
async def looking(kinesis: RunningEmulator, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    aws = AwsOptions(
        region="us-east-1", endpoint_url=kinesis.endpoint_url, access_key_id="test", secret_access_key="test"
    )
    headers = options.pop("headers", {})
    given = {"show_records": True, "aws": aws, "streams": ("flights",), **options}
    async with console(**given) as running, browsing(running.url) as http:
        http.headers.update(headers)
        await shown(http, "stream?name=flights", SHARD)
        yield http


async def look(http: aiohttp.ClientSession, start: str = "TRIM_HORIZON", shown_as: str = "text", **more: str) -> str:
    query = {"stream": "flights", "shard": SHARD, "from": start, "as": shown_as, **more}
    async with http.get("/records", params=query) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()


async def test_records_are_shown_as_text_and_whatever_is_in_them_is_text(kinesis: RunningEmulator) -> None:
    """And the page does not ask again by itself, which would take of the shard's quota."""
    async with looking(kinesis) as http:
        text = await look(http)
        assert "<pre>UA1545</pre>" in text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)" in text
        assert 'data-interval="0"' in text
        assert "http-equiv" not in text
        assert "/records?stream=flights" in await shown(http, "stream?name=flights", "Look at records")


async def test_records_are_decoded_and_one_that_cannot_be_is_shown_with_why(
    kinesis: RunningEmulator, tmp_path: Path
) -> None:
    (tmp_path / "flights.avsc").write_text(json.dumps(SCHEMA))
    async with looking(kinesis, avro_schemas=tmp_path) as http:
        text = await look(http, shown_as="json")
        assert "&#34;number&#34;: &#34;UA1714&#34;" in text
        assert "JSONDecodeError" in text
        assert "&#34;number&#34;: &#34;DL461&#34;" in await look(http, shown_as="avro")
        parts = await look(http, shown_as="kpl")
        assert [f"part {number}" in parts for number in range(3)] == [True] * 3
        assert "key-2" in parts


async def test_records_with_schemas_of_the_glue_schema_registry_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the schema that each names; one without a header is shown with why."""
    with running_emulator(companions=("glue",)) as running:
        client = running.client()
        client.create_stream(StreamName="flights", ShardCount=1)
        glue = boto3.client(
            "glue",
            region_name="us-east-1",
            endpoint_url=running.endpoints["glue"],
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        glue.create_registry(RegistryName="console")
        made = glue.create_schema(
            RegistryId={"RegistryName": "console"},
            SchemaName="flights",
            DataFormat="AVRO",
            Compatibility="NONE",
            SchemaDefinition=json.dumps(SCHEMA),
        )
        record = encode_glue_record(avro({"number": "DL461"}), UUID(made["SchemaVersionId"]), "zlib")
        for data in (record, b"UA1545"):
            client.put_record(StreamName="flights", PartitionKey="EWR", Data=data)
        monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", running.endpoints["glue"])
        async with looking(running) as http:
            text = await look(http, shown_as="glue")
    assert "&#34;number&#34;: &#34;DL461&#34;" in text
    assert "it has no header of the Glue Schema Registry" in text
    assert "<pre>UA1545</pre>" in text


async def test_an_aggregate_of_very_many_records_does_not_fill_a_page_or_the_memory() -> None:
    """Some of them are shown, and how many are not; what follows it is shown, too."""
    with running_emulator() as running:
        client = running.client()
        client.create_stream(StreamName="flights", ShardCount=1)
        # Without data, by one key of the longest: a MiB of it becomes more than a hundred.
        table, record = b"\x0a\x80\x02" + b"k" * 256, b"\x1a\x04\x08\x00\x1a\x00"
        body = table + record * 150_000
        bomb = b"\xf3\x89\x9a\xc2" + body + hashlib.md5(body, usedforsecurity=False).digest()
        for data in (bomb, b"behind it"):
            client.put_record(StreamName="flights", PartitionKey="EWR", Data=data)
        async with looking(running) as http:
            tracemalloc.start()
            try:
                text = await look(http, shown_as="kpl")
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
    assert "the aggregate holds 149,950 more records, which are not shown" in text
    assert "behind it" in text
    assert len(text) < 200_000
    assert most < 150_000_000


async def test_a_look_goes_on_behind_a_record_from_a_time_or_at_the_tip(kinesis: RunningEmulator) -> None:
    async with looking(kinesis) as http:
        assert "UA1545" in await look(http, "-15m")
        assert "this is the tip of the shard" in await look(http, "LATEST")
        number = (await look(http)).split("<code>")[1].partition("<")[0]
        behind = await look(http, number)
        assert "UA1545" not in behind
        assert "UA1714" in behind
        assert "is not TRIM_HORIZON" in await look(http, "yesterday")
        assert "is not one of text, json, glue, kpl" in await look(http, shown_as="avro")
        assert "ResourceNotFoundException" in await look(http, shard="shardId-000000000009")


async def test_who_may_not_see_records_does_not_and_looks_are_in_the_audit_log(
    kinesis: RunningEmulator, tmp_path: Path
) -> None:
    """A permission of its own: by method and stream."""
    file = tmp_path / "principals.toml"
    tokens = {"operator": "operators-token-of-16", "reader": "readers-token-of-16!", "other": "others-token-of-16!!"}
    rights = {
        "operator": 'methods = ["View"]\nstreams = ["*"]',
        "reader": 'streams = ["flights"]',
        "other": 'streams = ["orders"]',
    }
    file.write_text(
        "\n".join(
            f'[[principal]]\nname = "{name}"\ntoken_sha256 = "{hashlib.sha256(tokens[name].encode()).hexdigest()}"\n'
            f'services = ["console"]\n{rights[name]}'
            for name in tokens
        )
    )
    log = tmp_path / "audit.jsonl"
    server = {"security": ServerSecurity(principals=file), "audit_log": str(log)}
    for name, status in (("operator", 403), ("reader", 200), ("other", 403)):
        headers = {"Authorization": f"Bearer {tokens[name]}"}
        async with looking(kinesis, server=server, headers=headers) as http:
            query = {"stream": "flights", "shard": SHARD, "from": "TRIM_HORIZON"}
            async with http.get("/records", params=query) as answer:
                assert answer.status == status, name
                assert ("UA1545" in await answer.text()) is (status == 200)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    looks = [(one["who"], one["outcome"], one["streams"]) for one in events if one["event"] == "read records"]
    assert looks == [("reader", "OK", ["flights"])]
    assert "UA1545" not in log.read_text()
    assert [one["who"] for one in events if one["event"] == "refused"] == ["operator", "other"]


async def test_without_leave_no_records_are_shown_and_pages_of_others_take_none(kinesis: RunningEmulator) -> None:
    async with looking(kinesis, show_records=False) as http, http.get("/records?stream=flights") as answer:
        assert answer.status == 403
        assert "--show-records" in await answer.text()
    async with looking(kinesis) as http:
        query = {"stream": "flights", "shard": SHARD, "from": "TRIM_HORIZON"}
        async with http.get("/records", params=query, headers={"Sec-Fetch-Site": "cross-site"}) as answer:
            assert answer.status == 403
        async with http.get("/records", params={**query, "stream": "unknown"}) as answer:
            assert answer.status == 404


async def test_showing_records_needs_a_way_to_kinesis() -> None:
    with pytest.raises(ConsoleOptionError, match="show_records"):
        async with console(show_records=True):
            pass


async def test_streams_that_no_service_names_are_shown_where_that_is_asked_for(kinesis: RunningEmulator) -> None:
    """By ListStreams; and what is searched for is text."""
    kinesis.client().create_stream(StreamName="nobody-reads-this", ShardCount=1)
    async with looking(kinesis, list_streams=True) as http:
        assert "by no reader" in await shown(http, "streams", "nobody-reads-this")
        assert 'href="/stream?name=nobody-reads-this"' in await shown(
            http, "search?q=READS+nobody", "nobody-reads-this"
        )
        async with http.get("/search", params={"q": HOSTILE}) as answer:
            text = await answer.text()
            assert "<script>alert" not in text
            assert "No stream, reader" in text
    async with looking(kinesis) as http:
        assert "nobody-reads-this" not in await shown(http, "streams", "flights")
