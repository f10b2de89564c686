"""Stream consumers that are registered with the DataFrame (FLIP-128, `eager`), and released if no query takes them."""

import contextlib
import logging
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from penstock.registration import HolderWatch, Lease
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._reading.session.addresses import SPARK, ancestors
from penstock.spark_plugin._reading.session.leases import lease_requests, open_query_registry, query_marks, waiting
from penstock.spark_plugin._signals import SparkContextWatch, spark_files_folder

_log = logging.getLogger(__name__)
_TIME_FOR_A_START = timedelta(seconds=60)
_LOOK_SECONDS = 1.0
_BOOTSTRAP = """\
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from penstock.spark_plugin._reading.session.eager import main
main()
"""


def register_eagerly(options: KinesisOptions) -> tuple[Lease, ...]:
    """Register the stream consumers ahead of the query, which will find its own lease on them.

    This process ends soon, and no query may ever start: so another process waits for it, and gives them back.
    """
    leases: list[Lease] = []
    with open_query_registry(options, aws_options(options)) as registry:
        try:
            for request in lease_requests(options, options.job_id or ""):
                # Now the checkpoint is not known, which would tell a former run of the query.
                with HolderWatch(registry, request, query_marks(options)).looking(waiting(request)):
                    leases.append(registry.acquire(replace(request, time_to_live=_TIME_FOR_A_START)))
            _start_keeper(options, leases)
        except BaseException:
            _release(registry.release, leases)
            raise
    return tuple(leases)


def release_eager(options: KinesisOptions, leases: Sequence[Lease]) -> None:
    """Give them back, unless a query has them by now: a bounded read needs no stream consumer."""
    with open_query_registry(options, aws_options(options)) as registry:
        _release(registry.release, leases)


def _release(release: Callable[[Lease], bool], leases: Sequence[Lease]) -> None:
    for lease in leases:
        try:
            # A lease that the query took over has a newer token by now: this one gives back nothing.
            release(lease)
        except Exception as error:
            _log.warning("consumer %s of %s was not released: %s", lease.consumer_name, lease.stream_name, error)


def _start_keeper(options: KinesisOptions, leases: Sequence[Lease]) -> None:
    """Start the process that gives the leases back. What is secret goes through its input."""
    keeper = subprocess.Popen(
        [sys.executable, "-c", _BOOTSTRAP],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt in the shell is not meant for it
    )
    assert keeper.stdin is not None
    with keeper.stdin as out:
        pickle.dump([*sys.path], out)
        jvm = next((process for process, line in ancestors() if any(SPARK in part for part in line)), 0)
        pickle.dump((options, list(leases), spark_files_folder(), jvm), out)


def main() -> None:
    """Wait until no query can be meant to start any more, and give the leases back."""
    options, leases, folder, jvm = pickle.load(sys.stdin.buffer)  # noqa: S301  # from `_start_keeper`
    watch = SparkContextWatch(folder, jvm, parent_now=lambda: jvm if _is_alive(jvm) else 0)
    deadline = time.monotonic() + _TIME_FOR_A_START.total_seconds()
    with open_query_registry(options, aws_options(options)) as registry:
        while watch.what_is_gone() is None and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            with contextlib.suppress(Exception):  # asked again
                if _are_taken(leases, [one.lease for one in registry.list_consumers() if one.lease is not None]):
                    return
        _release(registry.release, leases)


def _are_taken(leases: Sequence[Lease], now: Sequence[Lease]) -> bool:
    """Whether newer leases are there for all of them: the query has begun."""
    newest = {one.consumer_arn: one.fencing_token for one in now}
    return all(newest.get(one.consumer_arn, 0) > one.fencing_token for one in leases)


def _is_alive(process: int) -> bool:
    if not process:
        return False
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
