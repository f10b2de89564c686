"""Write the flights to Kinesis: `python -m penstock.demo.producer --help`."""

import argparse
import asyncio
import math
import os
import time

from opentelemetry import context, propagate, trace

from penstock.async_sink import KinesisRequestEntry, KinesisStreamsSink, SinkMetrics
from penstock.aws import AwsOptions
from penstock.demo._children import Parent, tell
from penstock.demo._data import flight_records, read_flights

_tracer = trace.get_tracer("penstock.demo")
_TELL_EVERY_SECONDS = 0.25
WARM_UP_ROWS_PER_SECOND = 20.0
"""Until the parent says that Spark is warm: its first micro-batches start Python workers and compile code."""


class Pace:
    """Tells how long to wait so that no more than `per_second` entries leave in a second; None: never."""

    def __init__(self, per_second: float | None, now: float) -> None:
        self._per_second = per_second
        self._start = now

    def delay_seconds(self, written: int, now: float) -> float:
        """Seconds to wait before entry number `written`, from zero."""
        if self._per_second is None:
            return 0.0
        return max(0.0, self._start + written / self._per_second - now)


async def produce(aws: AwsOptions, stream_name: str, rows: int | None, rate: float | None, parent: Parent) -> None:
    """Write flights in order of departure and report how many were accepted, until all are or the parent wants an end.

    The first few go slowly: they warm Spark up. The others follow when the parent says so.
    """
    flights = read_flights(rows)
    tell(total=len(flights))
    sink = KinesisStreamsSink(aws, stream_name)
    written = 0
    with _tracer.start_as_current_span("demo.produce", attributes={"rows": len(flights)}):
        async with sink.create_writer() as writer:
            telling = asyncio.create_task(_keep_telling(writer.metrics), name="tell the metrics")
            warm, pace = False, Pace(min(rate or math.inf, WARM_UP_ROWS_PER_SECOND), time.monotonic())
            for record in flight_records(flights):
                if not warm:
                    await writer.flush(end_of_input=True)
                    if warm := parent.go.is_set():
                        pace = Pace(rate, time.monotonic() - written / rate if rate else 0.0)
                if parent.stop.is_set():
                    break
                delay = pace.delay_seconds(written, time.monotonic())
                if delay > 0:
                    await asyncio.sleep(delay)
                await writer.write(KinesisRequestEntry(record.data, record.partition_key))
                written += 1
            await writer.flush(end_of_input=True)
            telling.cancel()
            _tell_metrics(writer.metrics)
            tell(done=not parent.stop.is_set())


def _tell_metrics(metrics: SinkMetrics) -> None:
    tell(accepted=metrics.records_out, throttled=metrics.throttled)


async def _keep_telling(metrics: SinkMetrics) -> None:
    while True:
        _tell_metrics(metrics)
        await asyncio.sleep(_TELL_EVERY_SECONDS)


def main() -> None:
    """Parse the arguments and produce."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stream", required=True, help="name of the stream")
    parser.add_argument("--endpoint-url", help="of Kinesis")
    parser.add_argument("--region", required=True, help="of the stream")
    parser.add_argument("--ca-bundle", help="PEM file of authorities to trust")
    parser.add_argument("--rows", type=int, help="write only the first flights")
    parser.add_argument("--rate", type=float, help="records per second at most; default: what the shards take")
    arguments = parser.parse_args()
    aws = AwsOptions(region=arguments.region, endpoint_url=arguments.endpoint_url, ca_bundle=arguments.ca_bundle)
    context.attach(propagate.extract({"traceparent": os.environ.get("TRACEPARENT", "")}))
    asyncio.run(produce(aws, arguments.stream, arguments.rows, arguments.rate, Parent()))


if __name__ == "__main__":
    main()
