"""The cases of `hatch run bench fetch`: how fast a task gets a range that a reader in another process holds in memory.

The peer is a bare gRPC stream of the same bytes on the same server, over a channel with the same settings: what is left
is what ReadRange costs beside gRPC. Its two figures: by the clock, where what the reader does may hide behind what the
task does, and per second of processor time of both processes, where nothing hides.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from benchmarks._harness import Case
from benchmarks.reading import _fetch_server
from penstock.efo_consumer import StreamPositions, ranges_between, read_ranges
from penstock.rpc import open_channel

_PAIRS = 12
"""Fetches of each side in a round, in turn: a burst of load on the machine meets both."""


def run(rounds: int) -> Iterator[Case]:
    """Two cases of gRPC on loopback."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_fetch_server.serve, args=(other,), name="bench fetch server")
    process.start()
    try:
        address, start, end, records, nbytes = pipe.recv()
        ranges = ranges_between(StreamPositions.from_json(start), StreamPositions.from_json(end))
        channel = open_channel(address)
        stream = channel.unary_stream("/bench.Bare/Stream", request_serializer=None, response_deserializer=None)

        def ours() -> None:
            rows = sum(batch.num_rows for batch in read_ranges(address, None, _fetch_server.SESSION, ranges))
            if rows != records:
                raise RuntimeError(f"{rows} rows came of {records}")

        def bare() -> None:
            received = sum(len(message) for message in stream(b""))
            if received != nbytes:
                raise RuntimeError(f"{received} bytes came of {nbytes}")

        ours()
        bare()
        taken = [_round(ours, bare, pipe) for _ in range(rounds)]
        channel.close()
    finally:
        pipe.send(None)
        process.join(10)
        if process.is_alive():
            process.kill()
    for place, name in enumerate(("grpc", "grpc-processor-time")):
        yield Case(
            name=name,
            peer_name="bare-grpc-stream",
            unit="MB/s",
            ours=[nbytes / 1e6 / seconds[0][place] for seconds in taken],
            peers=[nbytes / 1e6 / seconds[1][place] for seconds in taken],
        )


def _round(
    ours: Callable[[], None], bare: Callable[[], None], pipe: Connection
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Fetch A B, B A, A B, …; return the seconds of our fetch and of a bare one."""
    taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for number in range(_PAIRS):
        for is_ours in (True, False) if number % 2 == 0 else (False, True):
            taken[is_ours].append(_measure(ours if is_ours else bare, pipe))
    return _undisturbed(taken[True]), _undisturbed(taken[False])


def _measure(fetch: Callable[[], None], pipe: Connection) -> tuple[float, float]:
    """Give the seconds by the clock, and the processor's seconds of both processes."""
    used = -_processor_seconds(pipe)
    began = time.perf_counter()
    fetch()
    seconds = time.perf_counter() - began
    return seconds, used + _processor_seconds(pipe)


def _processor_seconds(pipe: Connection) -> float:
    pipe.send("processor seconds")
    served: float = pipe.recv()
    return served + time.process_time()


def _undisturbed(taken: list[tuple[float, float]]) -> tuple[float, float]:
    """Give the lower quartiles: what else runs on the machine can only make a fetch slower."""
    seconds, used = zip(*taken, strict=True)
    return statistics.quantiles(seconds, n=4)[0], statistics.quantiles(used, n=4)[0]
