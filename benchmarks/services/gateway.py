"""The cases of `hatch run bench gateway`: records of 1 kB through a gateway, against the same by a writer of one's own.

One process writes, with 1, 8 and 64 clients that all have their records ready, to a server that accepts everything, in
JSON. By the clock (`records/s`) a third process shares the machine with the two that write and accept. The cases with
`-processor` compare the gateway's own time with the time of the whole writing process without a gateway.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa

from benchmarks._harness import Case
from benchmarks.writing.put import success_server
from penstock.async_sink import KinesisStreamsSink, RemoteSink
from penstock.aws import AwsOptions
from penstock.rpc.testing import service_process

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLIENTS = (1, 8, 64)
_RECORDS = 128_000
_RECORD_BYTES = 1_000
_BATCH_ROWS = 500


@dataclass
class _Figures:
    """Records per second, by round."""

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def took(self, clock: float, processor: float) -> None:
        """Take a round by its seconds."""
        self.clock.append(_RECORDS / clock)
        self.processor.append(_RECORDS / processor)


def _batches(rows: int) -> list[pa.RecordBatch]:
    data = os.urandom(_RECORD_BYTES)
    keys = [f"key-{number}" for number in range(_BATCH_ROWS)]
    batch = pa.record_batch({"data": [data] * _BATCH_ROWS, "partitionKey": keys})
    return [batch] * (rows // _BATCH_ROWS)


async def _by_itself(sink: KinesisStreamsSink, clients: int) -> tuple[float, float]:
    """Seconds by the clock, and of the processor, of one writer that tasks share."""
    shares = [_batches(_RECORDS // clients) for _ in range(clients)]
    async with sink.create_writer() as writer:

        async def write(batches: list[pa.RecordBatch]) -> None:
            for batch in batches:
                await writer.write_many(batch)

        began, used = time.perf_counter(), time.process_time()
        await asyncio.gather(*map(write, shares))
        await writer.flush(end_of_input=True)
        taken = time.perf_counter() - began, time.process_time() - used
        if writer.metrics.records_out != _RECORDS:
            raise RuntimeError(f"{writer.metrics.records_out} of {_RECORDS} records were accepted")
    return taken


async def _through(address: str, gateway: psutil.Process, clients: int) -> tuple[float, float]:
    """Seconds by the clock, and of the gateway's processor, of as many clients with a stream each."""
    shares = [_batches(_RECORDS // clients) for _ in range(clients)]

    async def write(number: int, batches: list[pa.RecordBatch]) -> None:
        async with RemoteSink(address, destination="s", client_id=f"client-{number}").create_writer() as writer:
            for batch in batches:
                await writer.write_many(batch)
            await writer.flush(end_of_input=True)
            if writer.metrics.records_out != _RECORDS // clients:
                raise RuntimeError(f"{writer.metrics.records_out} of {_RECORDS // clients} records were accepted")

    began, used = time.perf_counter(), _processor(gateway)
    async with asyncio.TaskGroup() as tasks:
        for number, batches in enumerate(shares):
            tasks.create_task(write(number, batches), name=f"client {number}")
    return time.perf_counter() - began, _processor(gateway) - used


def _processor(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def run(rounds: int) -> Iterator[Case]:
    """Two cases for each number of clients."""
    with ExitStack() as stack:
        endpoint = stack.enter_context(success_server())
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        arguments = ["serve", "--endpoint-url", endpoint]
        service = stack.enter_context(
            service_process("penstock.services.sink_gateway", arguments, {**os.environ, **keys})
        )
        gateway = psutil.Process(service.process.pid)
        aws = AwsOptions(region="us-east-1", endpoint_url=endpoint, access_key_id="test", secret_access_key="test")
        sink = KinesisStreamsSink(aws, "s")
        for clients in _CLIENTS:
            ours, peers = _Figures(), _Figures()
            for number in range(rounds + 1):
                gc.collect()
                through = asyncio.run(_through(service.address, gateway, clients))
                itself = asyncio.run(_by_itself(sink, clients))
                if number:  # The first is to warm up.
                    ours.took(*through)
                    peers.took(*itself)
            name, peer = f"clients-{clients}", "a-writer-of-its-own"
            yield Case(name=name, peer_name=peer, unit="records/s", ours=ours.clock, peers=peers.clock)
            yield Case(
                name=f"{name}-processor",
                peer_name=peer,
                unit="records/s of a processor",
                ours=ours.processor,
                peers=peers.processor,
            )
