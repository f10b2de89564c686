"""Waiting for a stream consumer that another job holds: what the log says meanwhile."""

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from penstock.registration import AcquireRequest, Lease, LeaseMarks
from penstock.spark_plugin._options.kinesis_options import KinesisOptions

_log = logging.getLogger(__name__)
HELD_TIMEOUT = timedelta(minutes=5)
"""How long a query waits for a predecessor's lease: longer than a lease lives, so that only a live holder fails it."""

_LATE_SECONDS = 5.0
"""A consumer is ours within seconds, unless another query holds it."""


def query_marks(options: KinesisOptions) -> LeaseMarks:
    """Marks for the leases of the options' registry."""
    store = Path(options.registry_store) if options.registry_store else None
    return LeaseMarks(endpoint=options.registry_endpoint, store=store, endpoint_url=options.endpoint_url)


def waiting(request: AcquireRequest) -> Callable[[Lease | None], None]:
    """Log why nothing seems to happen while a consumer is acquired: another job holds it, or Kinesis is creating it.

    Returns:
        What `HolderWatch.looking` calls.
    """
    began, told_of = time.monotonic(), ""

    def tell(lease: Lease | None) -> None:
        nonlocal told_of
        if lease is not None and told_of != lease.job_id:
            told_of = lease.job_id
            _tell_held(request, lease)
        elif lease is None and not told_of and time.monotonic() - began >= _LATE_SECONDS:
            told_of = request.job_id
            _log.warning(
                "still waiting for consumer %r of %s: Kinesis is creating it",
                request.consumer_name,
                request.stream_name,
            )

    return tell


def _tell_held(request: AcquireRequest, lease: Lease) -> None:
    _log.warning(
        "still waiting for consumer %r of %s: it is held by job %r, and waited for up to %s. If that job has stopped, "
        "its lease ends within 30 s of it, or 90 s with a registry service, unless that has other times; a query with "
        "a jobId, the same at each start, need not wait for its own former run. If it runs, "
        "stop it, or give this query an efoConsumerName of its own. If "
        "spark.streams.active shows no such query, look for a process python_streaming_source_runner that an earlier "
        "session left on the driver's machine (a job 'query-HOST-PROCESS-…' names it), and end it",
        request.consumer_name,
        request.stream_name,
        lease.job_id,
        f"{HELD_TIMEOUT.total_seconds():g} s",
    )
