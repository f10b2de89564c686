"""The load of `bench throttle` by a writer: `_throttle_load ENDPOINT WARM_UP SECONDS STRATEGY OFFERED`.

Prints JSON: accepted_per_second, throttled_share, acknowledged, timed_out. The records are numbered from zero.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock.async_sink import (
    AsyncSinkConfig,
    KinesisRequestEntry,
    KinesisStreamsSink,
    RateLimitingStrategy,
    aimd_strategy,
    kinesis_strategy,
)
from penstock.aws.testing import emulator_options

STREAM = "load"
_RECORD_BYTES = 100
_CHUNK = 100
Strategy = Callable[[AsyncSinkConfig], RateLimitingStrategy]
STRATEGIES: Mapping[str, Strategy] = {"kinesis": kinesis_strategy, "aimd": aimd_strategy}


def _entry(number: int) -> KinesisRequestEntry:
    return KinesisRequestEntry((b"%d " % number).ljust(_RECORD_BYTES, b"x"), f"key-{number}")


async def load(endpoint: str, strategy: Strategy, warm_up: float, seconds: float, offered: float) -> dict[str, Any]:
    """Write for the warm-up and the seconds that count; `offered` are records per second at most."""
    sink = KinesisStreamsSink(emulator_options(endpoint), STREAM, strategy=strategy)
    async with sink.create_writer() as writer:
        metrics = writer.metrics
        began = time.monotonic()

        async def write() -> None:
            # A cancelled call has written the first entries of its chunk, and no others: the numbers have no gaps.
            while True:
                first = writer.records_written
                ahead = first - (time.monotonic() - began) * offered
                if ahead > 0:
                    await asyncio.sleep(ahead / offered + 0.005)
                await writer.write_many([_entry(number) for number in range(first, first + _CHUNK)])

        def numbers() -> tuple[float, int, int, int]:
            return time.monotonic(), metrics.records_out, metrics.throttled, metrics.submitted

        writing = asyncio.create_task(write(), name="write")
        try:
            await asyncio.sleep(warm_up)
            before = numbers()
            await asyncio.sleep(seconds)
            after = numbers()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        await writer.flush(end_of_input=True)
        written = writer.records_written
    elapsed, accepted, throttled, sent = (b - a for a, b in zip(before, after, strict=True))
    if metrics.records_out != written:
        raise RuntimeError(f"{written} records written, {metrics.records_out} acknowledged")
    return {
        "accepted_per_second": accepted / elapsed,
        "throttled_share": throttled / max(1, sent),
        "acknowledged": metrics.records_out,
        "timed_out": metrics.timed_out,
    }


def main(endpoint: str, warm_up: str, seconds: str, strategy: str, offered: str) -> None:
    """Print what `load` found."""
    found = asyncio.run(load(endpoint, STRATEGIES[strategy], float(warm_up), float(seconds), float(offered)))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
