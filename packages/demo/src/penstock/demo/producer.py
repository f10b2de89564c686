"""Write the flights to Kinesis: `python -m penstock.demo.producer --help`."""

import argparse
import asyncio
import contextlib
import os
import threading
import time

from opentelemetry import context, propagate, trace

from penstock.async_sink import KinesisRequestEntry, KinesisStreamsSink
from penstock.aws import AwsOptions
from penstock.demo._data import flight_records, read_flights
from penstock.demo._tell import stop_event, tell

_tracer = trace.get_tracer("penstock.demo")
_TELL_EVERY_SECONDS = 0.25


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


async def produce(
    aws: AwsOptions, stream_name: str, rows: int | None, rate: float | None, stop: threading.Event
) -> None:
    """Write flights in order of departure and tell how many were accepted, until all are or `stop` is set."""
    flights = read_flights(rows)
    tell(total=len(flights))
    sink = KinesisStreamsSink(aws, stream_name)
    written, told = 0, 0.0
    with _tracer.start_as_current_span("demo.produce", attributes={"rows": len(flights)}):
        async with sink.create_writer() as writer:
            pace = Pace(rate, time.monotonic())
            for record in flight_records(flights):
                if stop.is_set():
                    break
                delay = pace.delay_seconds(written, time.monotonic())
                if delay > 0:
                    await asyncio.sleep(delay)
                await writer.write(KinesisRequestEntry(record.data, record.partition_key))
                written += 1
                if time.monotonic() - told > _TELL_EVERY_SECONDS:
                    told = time.monotonic()
                    tell(accepted=writer.metrics.records_out, throttled=writer.metrics.throttled)
            await writer.flush(end_of_input=True)
            tell(accepted=writer.metrics.records_out, throttled=writer.metrics.throttled, done=not stop.is_set())


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
    stop = stop_event()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(produce(aws, arguments.stream, arguments.rows, arguments.rate, stop))


if __name__ == "__main__":
    main()
