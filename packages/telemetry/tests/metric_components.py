"""A process with all that emits metrics, over the embedded Kinesis: `metric_components.py ENDPOINT FOLDER`."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.async_sink import AsyncSinkWriter, ResultHandler
from penstock.async_sink._core.entries import EntryFailure, RequestEntryWrapper
from penstock.async_sink._core.settlement import TerminalReason, Termination
from penstock.async_sink._spans import SinkTelemetry
from penstock.aws import AwsOptions, AwsSession
from penstock.efo_consumer import Consumer, ShardStats
from penstock.efo_consumer._continuity.guard import Loss, report
from penstock.efo_consumer._publish.metrics import PublisherMetrics, stood_still
from penstock.efo_consumer._wire.kpl import DeaggregationCounts
from penstock.operator_attributes import Boundedness, JobGraph, OperatorAttributes, StageFailed, StageStarted, compile
from penstock.operator_attributes._schedule.staged_job import StagedJob
from penstock.registration import AcquireRequest, open_local_registry
from penstock.rpc._security.principals import PrincipalsFile
from penstock.rpc._security.token_file import TokenFile
from penstock.rpc._server.audit import AuditLog
from penstock.spark_plugin import KinesisProgressListener, ProgressMetrics, ReaderNumbers
from penstock.telemetry import configure

STREAM = "flights"


class DeadLetters:
    takes_many = True

    async def open(self) -> None: ...

    async def handle(self, records: Sequence[object]) -> None: ...

    async def close(self) -> None: ...


class Refusing(AsyncSinkWriter[bytes, bytes]):
    """Throttles the first request, and refuses its second entry permanently."""

    requests = 0

    async def submit_request_entries(self, entries: Sequence[bytes], result_handler: ResultHandler[bytes]) -> None:
        self.requests += 1
        if self.requests == 1:
            result_handler.retry_failures([EntryFailure(0), EntryFailure(1, "Bad", throttled=False, final=True)])
        else:
            result_handler.complete()

    def get_size_in_bytes(self, entry: bytes) -> int:
        return len(entry)


async def read(consumer: Consumer) -> None:
    async for batch in consumer:
        await consumer.checkpoint(batch)
        break
    # What is rare, by the calls that count it.
    stood_still(1.0, stream=STREAM, shard_id="shardId-0")
    tokens = Path(sys.argv[2]) / "tokens"
    tokens.write_text("token" * 7)
    file = TokenFile(tokens)
    tokens.unlink()
    file.tokens()
    principals = Path(sys.argv[2]) / "principals"
    principals.write_text(f'[[principal]]\nname = "reader"\ntoken_sha256 = "{"0" * 64}"\n')
    known = PrincipalsFile(principals)
    principals.unlink()
    known.takes_certificates()
    (Path(sys.argv[2]) / "log").mkdir()
    audit = AuditLog(str(Path(sys.argv[2]) / "log" / "audit"), "components")
    shutil.rmtree(Path(sys.argv[2]) / "log")
    audit.write("acquired", who="reader", address="", outcome="done")
    counts = DeaggregationCounts(
        aggregates=1,
        user_records=2,
        user_records_of_siblings=1,
        user_records_outside_shard=1,
        malformed_user_records=1,
        malformed=1,
    )
    PublisherMetrics().deaggregated(counts, stream=STREAM, shard_id="shardId-0")
    sink = SinkTelemetry(STREAM)
    sink.waited("limit", 1.0)
    sink.terminated([Termination(RequestEntryWrapper(b"", 0), EntryFailure(0), TerminalReason.EXPIRED)])
    report(Loss("it is gone"), stream=STREAM, shard_id="shardId-0", after="1", upto="9", fail=False)


def run_query() -> None:
    """What Spark tells a listener of a query."""
    stats = ShardStats(
        STREAM, "s0", 10, records=9, bytes=90, subscriptions=1, buffered_records=0, buffered_bytes=0, replays=0
    )
    source = {
        "numInputRows": 9,
        "latestOffset": json.dumps({"streams": [STREAM], **ReaderNumbers.of([stats]).to_json()}),
    }
    document = {"id": "q", "runId": "r", "name": "delays", "batchId": 1, "timestamp": "2026-01-01T00:00:00Z"}
    listener = KinesisProgressListener(ProgressMetrics())
    progress = {**document, "sources": [source]}
    event: Any = SimpleNamespace(progress=progress)
    listener.onQueryProgress(event)


async def main(endpoint: str, folder: Path) -> None:
    telemetry = configure("components")
    aws = AwsOptions(region="us-east-1", endpoint_url=endpoint, access_key_id="test", secret_access_key="test")
    options: dict[str, Any] = {"aws": aws, "checkpoints": folder / "checkpoints.db", "registry": folder / "leases.db"}
    async with Consumer(STREAM, efo="earlier", start="TRIM_HORIZON", **options) as consumer:
        await read(consumer)  # its subscription ends with it
    async with (
        Refusing(destination=STREAM, terminal=DeadLetters()) as writer,
        Consumer(STREAM, efo="reads", start="TRIM_HORIZON", **options) as consumer,
    ):
        await writer.write_many([b"one", b"two", b"three"])
        await writer.flush(end_of_input=True)
        await read(consumer)
        registry = open_local_registry(AwsSession(aws), folder / "registry.db")
        await registry.acquire(AcquireRequest(stream_name=STREAM, job_id="job", consumer_name="leased"))
        await registry.sweep()
        graph = JobGraph("join")
        graph.add_source("history", boundedness=Boundedness.BOUNDED)
        graph.add_operator("daily", "history", attributes=OperatorAttributes(output_only_after_end_of_stream=True))
        graph.add_sink("joined", "daily")
        job = StagedJob(compile(graph))
        stage = job.plan.stages[0].id
        job.apply(StageStarted(stage_id=stage, at=0.0))
        job.apply(StageFailed(stage_id=stage, at=1.0, error="no"))
        run_query()
        print(telemetry.prometheus_address, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await registry.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
    os._exit(0)
