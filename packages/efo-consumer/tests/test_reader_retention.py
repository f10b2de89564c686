"""How long a stream keeps its records: asked rarely, as an account may ask 20 times a second."""

from __future__ import annotations

import asyncio

from penstock.aws import AwsServiceError, AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import KinesisBackend
from penstock.emulator.testing import running_emulator

SHARDS = 300


async def test_the_shards_of_a_stream_ask_once() -> None:
    """All at the same moment, as when a session is opened where each stood yesterday: none is throttled."""
    with running_emulator() as emulator:
        client = emulator.client()
        for stream in ("a", "b"):
            client.create_stream(StreamName=stream, ShardCount=1)
        client.increase_stream_retention_period(StreamName="b", RetentionPeriodHours=48)
        backend = KinesisBackend(AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))))
        try:
            async with asyncio.timeout(20):
                found = await asyncio.gather(*(backend.stream_facts("ab"[n % 2]) for n in range(SHARDS)))
            assert [facts.retention_millis // 3_600_000 for facts in found] == [24, 48] * (SHARDS // 2)
        finally:
            await backend.aclose()


async def test_a_stream_that_cannot_be_asked_about_is_asked_about_once() -> None:
    """Each shard is told why; none of them tries again while the others wait for it."""
    with running_emulator() as emulator:
        emulator.faults.add("error", operation="DescribeStreamSummary", code="AccessDeniedException", count=1)
        backend = KinesisBackend(AwsSession(emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))))
        try:
            asked = (backend.stream_facts("a") for _ in range(SHARDS))
            found = await asyncio.gather(*asked, return_exceptions=True)
        finally:
            await backend.aclose()
    assert {type(one) for one in found} == {AwsServiceError}
    assert {one.code for one in found if isinstance(one, AwsServiceError)} == {"AccessDeniedException"}
