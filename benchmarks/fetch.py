"""The case of `hatch run bench fetch`: how fast a task gets a range that a reader in another process holds in memory.

The peer is a bare gRPC stream of the same bytes on the same server: what is left is what ReadRange costs beside gRPC.
"""

import multiprocessing
import time
from collections.abc import Iterator

from benchmarks import _fetch_server
from benchmarks._harness import Case, interleave
from penstock.efo_consumer import StreamPositions, ranges_between, read_ranges
from penstock.rpc import open_channel

_FETCHES = 5


def run(rounds: int) -> Iterator[Case]:
    """One case: gRPC on loopback."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_fetch_server.serve, args=(other,), name="bench fetch server")
    process.start()
    try:
        address, start, end, records, nbytes = pipe.recv()
        ranges = ranges_between(StreamPositions.from_json(start), StreamPositions.from_json(end))
        megabytes: float = _FETCHES * nbytes / 1e6
        channel = open_channel(address)
        stream = channel.unary_stream("/bench.Bare/Stream", request_serializer=None, response_deserializer=None)

        def ours() -> float:
            began, rows = time.perf_counter(), 0
            for _ in range(_FETCHES):
                batches = read_ranges(address, None, _fetch_server.SESSION, ranges)
                rows += sum(batch.num_rows for batch in batches)
            seconds = time.perf_counter() - began
            if rows != _FETCHES * records:
                raise RuntimeError(f"{rows} rows came of {_FETCHES * records}")
            return megabytes / seconds

        def bare() -> float:
            began, received = time.perf_counter(), 0
            for _ in range(_FETCHES):
                received += sum(len(message) for message in stream(b""))
            seconds = time.perf_counter() - began
            if received != _FETCHES * nbytes:
                raise RuntimeError(f"{received} bytes came of {_FETCHES * nbytes}")
            return megabytes / seconds

        yield interleave("grpc", ours, bare, peer_name="bare-grpc-stream", unit="MB/s", rounds=rounds)
        channel.close()
    finally:
        pipe.send(None)
        process.join(10)
        if process.is_alive():
            process.kill()
