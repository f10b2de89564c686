"""PutRecords in CBOR says what it says in JSON, and falls back to JSON where the server does not understand it."""

import asyncio
import base64
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import cbor2
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.async_sink import AggregationConfig, KinesisRequestEntry, KinesisStreamsSink
from penstock.async_sink._core.runs import Batch, EntryRows, EntryRun
from penstock.async_sink._destinations.kinesis.entry import size_in_bytes
from penstock.async_sink._destinations.kinesis.put_records import PutRecordsCodec, default_format
from penstock.async_sink._destinations.kinesis.rows import check_rows
from penstock.async_sink.errors import DestinationError, SinkOptionError
from penstock.aws import AwsOptions
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import running_emulator

keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=256)
entries = st.builds(KinesisRequestEntry, st.binary(max_size=600), keys, st.none() | st.integers(0, 2**128 - 1).map(str))
CODEC = PutRecordsCodec(("StreamName", "s"))


@given(st.lists(entries, max_size=30))
@example([KinesisRequestEntry(b"x" * size, "ключ") for size in (0, 23, 24, 255, 256, 65_535, 65_536)])
@example([KinesisRequestEntry(bytes(size % 7), str(size)) for size in range(500)])
def test_a_body_says_in_cbor_what_it_says_in_json(records: list[KinesisRequestEntry]) -> None:
    """With data of any length, any key, and hash keys here and there."""
    expected = json.loads(CODEC.encode(records))
    for record in expected["Records"]:
        record["Data"] = base64.b64decode(record["Data"])
    assert cbor2.loads(b"".join(CODEC.encode_cbor(records))) == expected


def record_batch(records: list[KinesisRequestEntry]) -> pa.RecordBatch:
    """The records after a row that is not sent."""
    columns = {
        "data": pa.array([b"before", *(one.data for one in records)], pa.binary()),
        "partitionKey": pa.array(["before", *(one.partition_key for one in records)], pa.string()),
        "explicitHashKey": pa.array([None, *(one.explicit_hash_key for one in records)], pa.string()),
    }
    return pa.record_batch(columns)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.lists(entries, min_size=1, max_size=8), st.sampled_from(["entries", "columns", "cbor"]), st.booleans()
        ),
        min_size=1,
        max_size=4,
    )
)
def test_rows_are_sent_like_the_entries_that_they_stand_for(
    runs: list[tuple[list[KinesisRequestEntry], str, bool]],
) -> None:
    """Runs of record batches, written in CBOR before or not, cut anywhere, beside runs of entries, with hash keys."""
    parts: list[EntryRun[KinesisRequestEntry]] = []
    for records, kind, is_cut in runs:
        rows: Any = EntryRows.of(records, map(size_in_bytes, records))
        if kind != "entries":
            rows = check_rows(
                record_batch(records).slice(1),
                first_number=0,
                max_record_size_in_bytes=1 << 20,
                in_cbor=kind == "cbor",
            )
            # As the writer does before it keeps rows.
            rows = rows.cut(0, len(records)) if is_cut or kind == "cbor" else rows
        run = EntryRun(rows, number=0)
        parts += [run.split(len(records) // 2), run] if len(records) > 1 else [run]
    sent = [one for records, _, _ in runs for one in records]
    batch = Batch(parts, len(sent), 0, 0.0, has_runs=True)
    assert b"".join(CODEC.encode_cbor(batch.entries)) == b"".join(CODEC.encode_cbor(sent))
    assert list(batch.entries) == sent


results = st.lists(
    st.builds(
        lambda code, message: (
            {"SequenceNumber": "1", "ShardId": "shardId-0"}
            if code is None
            else {"ErrorCode": code, "ErrorMessage": message}
        ),
        st.sampled_from([None, "InternalFailure", "ProvisionedThroughputExceededException"]),
        st.sampled_from(["slow down for shard shardId-7 in stream s", "qFailedRecordCount", ""]),
    ),
    min_size=1,
    max_size=20,
)


@given(results, st.booleans(), st.booleans())
def test_an_answer_says_in_cbor_what_it_says_in_json(
    records: list[dict[str, str]], count_first: bool, indefinite: bool
) -> None:
    """Wherever the count of failures stands, and though maps and lists be without lengths."""
    answer: dict[str, Any] = {"FailedRecordCount": sum("ErrorCode" in one for one in records), "Records": records}
    if not count_first:
        answer = dict(reversed(answer.items()))
    body = cbor2.dumps(answer, indefinite_containers=indefinite)
    expected = json.dumps(answer).encode()
    assert CODEC.failures(body, len(records)) == CODEC.failures(expected, len(records))
    assert CODEC.shards(body) == CODEC.shards(expected)


def test_only_the_service_itself_gets_cbor_unasked() -> None:
    """An emulator may silently treat data in CBOR as base64."""
    for url in (
        "https://kinesis.eu-west-1.amazonaws.com/",
        "https://kinesis.cn-north-1.amazonaws.com.cn/",
        "https://vpce-1-a.kinesis.eu-west-1.vpce.amazonaws.com",
        "https://kinesis.eu-west-1.api.aws/",
    ):
        assert default_format(url) == "cbor"
    for url in ("http://127.0.0.1:4566", "https://localhost.localstack.cloud:4566", "https://amazonaws.com.example/"):
        assert default_format(url) == "json"
    with pytest.raises(SinkOptionError, match="wire_format"):
        KinesisStreamsSink(AwsOptions(region="eu-west-1"), "s", wire_format="xml")  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("aggregation", [None, AggregationConfig()], ids=["records", "aggregates"])
def test_a_service_that_speaks_cbor_gets_all_records(aggregation: AggregationConfig | None) -> None:
    """Throttled ones too, after they were refused in CBOR; and an error of the whole request keeps its message."""
    with running_emulator(tls=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="s", ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName="s", WaiterConfig={"Delay": 1})
        options = emulator_options(emulator.endpoint_url)

        async def write(stream: str, rows: int) -> tuple[int, int]:
            sink = KinesisStreamsSink(options, stream, wire_format="cbor", aggregation=aggregation)
            async with sink.create_writer() as writer:
                await writer.write_many(
                    pa.record_batch(
                        {"data": [b"\x00\xff%d" % row for row in range(rows)], "partitionKey": ["k"] * rows}
                    )
                )
                await writer.flush(end_of_input=True)
                return writer.metrics.records_out, writer.metrics.throttled

        # A shard takes 1,000 records a second.
        written, throttled = asyncio.run(write("s", 1_500))
        assert written == 1_500
        assert aggregation is not None or throttled > 0
        with pytest.raises(DestinationError, match="ResourceNotFoundException"):
            asyncio.run(write("nowhere", 1))


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def json_only(seen: list[str], refusal: tuple[int, bytes]) -> Handler:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                body = await reader.readexactly(int(request.partition("content-length:")[2].partition("\r\n")[0]))
                seen.append(request.partition("content-type:")[2].partition("\r\n")[0].strip())
                status, answer = refusal
                if "json" in seen[-1]:
                    count = len(json.loads(body)["Records"])
                    records = [{"SequenceNumber": "1", "ShardId": "shardId-0"}] * count
                    status, answer = 200, json.dumps({"FailedRecordCount": 0, "Records": records}).encode()
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(answer), answer))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    return serve


@pytest.mark.parametrize(
    "refusal", [(400, b'{"__type":"SerializationException"}'), (404, b"<html>not found"), (415, b"")]
)
def test_a_server_that_knows_no_cbor_gets_json(refusal: tuple[int, bytes], caplog: pytest.LogCaptureFixture) -> None:
    """From its first refusal on, with one line in the log."""
    seen: list[str] = []

    async def write() -> int:
        server = await asyncio.start_server(json_only(seen, refusal), "127.0.0.1", 0)
        async with server:
            endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with KinesisStreamsSink(
                emulator_options(endpoint), "s", wire_format="cbor"
            ).create_writer() as writer:
                for _ in range(3):
                    await writer.write_many([KinesisRequestEntry(b"x", "k")] * 10)
                    await writer.flush(end_of_input=True)
                return writer.metrics.records_out

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(write()) == 30
    assert seen == ["application/x-amz-cbor-1.1"] + ["application/x-amz-json-1.1"] * 3
    assert len([one for one in caplog.records if "takes no CBOR" in one.getMessage()]) == 1
