"""CBOR as the SDKs for Java speak it. No client for Python does, so these tests do it by hand."""

from __future__ import annotations

import http.client
import subprocess
import sys
from typing import Any

import cbor2
import pytest

CBOR = "application/x-amz-cbor-1.1"


@pytest.fixture
def ask(world: Any) -> Any:
    def ask(operation: str, params: Any, *, content_type: str = CBOR) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(world.emulator.endpoint_url.removeprefix("http://"), timeout=20)
        body = params if isinstance(params, bytes) else cbor2.dumps(params)
        headers = {"Content-Type": content_type, "X-Amz-Target": f"Kinesis_20131202.{operation}"}
        connection.request("POST", "/", body, headers)
        response = connection.getresponse()
        content = response.read()
        assert response.headers["Content-Type"] == CBOR
        connection.close()
        # Tags as they are: the tag of a timestamp holds milliseconds, although it means seconds.
        hook = {1: lambda value, _immutable=False: cbor2.CBORTag(1, value)}
        return response.status, cbor2.loads(content, semantic_decoders=hook) if content else None

    return ask


def test_records_go_in_and_out_as_byte_strings(world: Any, ask: Any) -> None:
    """Data is bytes both ways, and the arrival time is tag 1 around milliseconds."""
    world.stream()
    entries = [{"Data": b"\x00\xff", "PartitionKey": "a"}, {"Data": b"", "PartitionKey": "b"}]
    status, answer = ask("PutRecords", {"StreamName": "stream", "Records": entries})
    assert (status, answer["FailedRecordCount"]) == (200, 0)
    assert world.read()["Records"][0]["Data"] == b"\x00\xff"
    _, answer = ask("GetRecords", {"ShardIterator": world.iterator()})
    first, second = answer["Records"]
    assert (first["Data"], first["PartitionKey"]) == (b"\x00\xff", "a")
    assert second["Data"] == b""
    assert first["ApproximateArrivalTimestamp"] == cbor2.CBORTag(1, round(world.clock.time() * 1000))
    assert answer["MillisBehindLatest"] == 0


@pytest.mark.parametrize("tagged", [True, False])
def test_a_timestamp_comes_as_milliseconds_in_a_tag(world: Any, ask: Any, tagged: bool) -> None:
    """AT_TIMESTAMP takes tag 1 around milliseconds; a number without the tag means seconds, as in JSON."""
    world.stream()
    world.put("before")
    world.clock.advance(10)
    world.put("after")
    at = world.clock.time() - 5
    timestamp = cbor2.CBORTag(1, round(at * 1000)) if tagged else at
    request = {"StreamName": "stream", "ShardId": world.first, "ShardIteratorType": "AT_TIMESTAMP"}
    _, answer = ask("GetShardIterator", {**request, "Timestamp": timestamp})
    records = world.client.get_records(ShardIterator=answer["ShardIterator"])["Records"]
    assert [record["PartitionKey"] for record in records] == ["after"]


def test_answers_have_the_shapes_of_the_model(world: Any, ask: Any) -> None:
    """Nested timestamps are tagged, numbers and strings are not, and what is null is left out."""
    world.stream(shards=2)
    created = cbor2.CBORTag(1, int(world.clock.time()) * 1000)
    _, answer = ask("DescribeStream", {"StreamName": "stream"})
    assert answer["StreamDescription"]["StreamCreationTimestamp"] == created
    assert len(answer["StreamDescription"]["Shards"]) == 2
    _, answer = ask("ListStreams", {})
    assert answer["StreamSummaries"][0]["StreamCreationTimestamp"] == created
    world.client.merge_shards(
        StreamName="stream", ShardToMerge=world.first, AdjacentShardToMerge="shardId-000000000001"
    )
    _, answer = ask("GetRecords", {"ShardIterator": world.iterator()})
    assert "NextShardIterator" not in answer
    assert [child["ShardId"] for child in answer["ChildShards"]] == ["shardId-000000000002"]


def test_without_a_cbor2_that_can_be_used_json_is_spoken_and_cbor_refused() -> None:
    """As on Macs with Intel's processors, where cbor2 has no wheels, or an old one."""
    program = """
import json, sys, types, urllib.error, urllib.request
sys.modules["cbor2"] = {stand_in}
from penstock.emulator.testing import running_emulator
with running_emulator() as running:
    running.client().create_stream(StreamName="flights", ShardCount=1)
    assert running.client().list_streams()["StreamNames"] == ["flights"]
    headers = {{"Content-Type": "application/x-amz-cbor-1.1", "X-Amz-Target": "Kinesis_20131202.ListStreams"}}
    request = urllib.request.Request(running.endpoint_url, b"\\xa0", headers)
    try:
        urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        print(error.code, error.headers["Content-Type"], json.loads(error.read())["message"])
"""
    said = "400 application/x-amz-json-1.1 CBOR needs cbor2 6.1 or newer here: send application/x-amz-json-1.1\n"
    for stand_in in ("None", "types.SimpleNamespace(loads=lambda data, tag_hook=None: None)"):
        words = [sys.executable, "-c", program.format(stand_in=stand_in)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout == said, done.stderr
