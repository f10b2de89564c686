"""The service's time: when a read was planned, and when all that arrived before a time can be seen."""

import math
from asyncio import sleep
from collections.abc import Collection

from penstock.aws import AwsSession, ServiceClock
from penstock.efo_consumer import TIP_SECONDS, StreamIdentity, stream_client
from penstock.spark_plugin._reading.stream_names import call_about

ARRIVAL_MICROS = 1_000_000
"""How far arrival times may go back within a shard: Kinesis calls them approximate."""

_SEEN_SECONDS = 2.0
"""GetRecords may be a second behind what was acknowledged, and say 0 for MillisBehindLatest all the same. Only a call
that is made so long after a time shows the tip of a shard as it was then."""

_SHOWN_SECONDS = 1.5
"""GetRecords may be a second behind what was acknowledged; half a second is added, as that is not guaranteed."""

_MOST_SECONDS = 60.0
"""Longest single wait: a read whose end is in the future follows its shards meanwhile."""


def guess_of_tips(what: str, stream: str, shards: Collection[str]) -> str:
    """What to log where a read ends at tips that the service does not name.

    Args:
        what: what ends.
        stream: the stream.
        shards: the open shards whose answers have been empty for as long as is waited.
    """
    first = ", ".join(sorted(shards)[:3])
    return (
        f"{stream}: {what} ends where {len(shards)} open shards ({first}{', …' if len(shards) > 3 else ''}) have given "
        f"no records for {TIP_SECONDS:g} s. That this is their tip is a guess: the service does not say it"
    )


async def ask_time(session: AwsSession, stream: StreamIdentity, retry_patience: float) -> None:
    """Set the session's clock to the service's time, instead of this host's.

    Errors that may pass are retried for `retry_patience` seconds; 0 means for ever.

    Raises:
        penstock.efo_consumer.errors.RecordPublisherRetriesError: the retries have run out.
        penstock.aws.AwsError: the stream's shards cannot be listed.
    """
    async with stream_client(session) as client:
        # Any answer has the service's time; this one needs no permission that reading does not need.
        request = {**stream.request, "MaxResults": 1}
        await call_about(client, "ListShards", request, stream, retry_patience)


def now_millis(session: AwsSession) -> int:
    """A time by the service's clock, in milliseconds since 1970, that all records so far precede."""
    return math.floor(session.service_clock().latest() * 1000) + 1


def is_seen(clock: ServiceClock, millis: int) -> bool:
    """Whether an answer to a call that is made now holds all records that arrived before a time."""
    return _rest_seconds(clock, millis) <= 0


async def wait_until_seen(clock: ServiceClock, millis: int, most: float | None = _MOST_SECONDS) -> None:
    """Wait until an answer holds all records that arrived before a time, but not longer than `most` seconds."""
    await _wait(_rest_seconds(clock, millis), most)


async def wait_until_shown(clock: ServiceClock, moment: float) -> None:
    """Wait until an answer holds all records that were acknowledged at a moment, by the clock's `monotonic()`.

    It is not a wait for a service's time: neither does it grow by what is not known of that, nor does it matter whether
    that stands still or steps back. An arrival time tells less: a record that shows it may be acknowledged a second
    later.
    """
    await _wait(moment + _SHOWN_SECONDS - clock.monotonic(), None)


async def wait_until(clock: ServiceClock, millis: int) -> None:
    """Wait until a time has passed: Kinesis may refuse to read from one that is to come."""
    await _wait(millis / 1000 - clock.earliest(), None)


def _rest_seconds(clock: ServiceClock, millis: int) -> float:
    return millis / 1000 + _SEEN_SECONDS - clock.earliest()


async def _wait(seconds: float, most: float | None) -> None:
    if seconds > 0:
        await sleep(seconds if most is None else min(seconds, most))
