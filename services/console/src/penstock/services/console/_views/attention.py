"""What somebody should look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.operator_attributes import StageState
from penstock.registration import ConsumerState
from penstock.services.console._values import State
from penstock.services.console._views.lists import consumer_rows, running_readers, sink_rows
from penstock.services.console._views.streams import stream_rows
from penstock.services.console._views.view import (
    TITLES,
    bytes_words,
    count_words,
    plural,
    rate_words,
    seconds_words,
    usd_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.services.console._views.view import View


_MOST_OF_A_KIND = 20


@dataclass(frozen=True, kw_only=True)
class Concern:
    """Something to look at, where, and what to do."""

    page: str
    """Name of the route that shows it."""
    query: dict[str, str]
    what: str
    cure: str


def concerns(view: View) -> list[Concern]:
    """What is wrong or costs money for nothing, the services first."""
    kinds = (
        ("overview", _services),
        ("streams", _streams),
        ("readers", _readers),
        ("sinks", _sinks),
        ("jobs", _jobs),
        ("consumers", _consumers),
    )
    found: list[Concern] = []
    for page, every in kinds:
        some = list(every(view))
        found += some[:_MOST_OF_A_KIND]
        # One reader or job with a lot of trouble must not hide the others.
        if len(some) > _MOST_OF_A_KIND:
            what = f"{count_words(len(some) - _MOST_OF_A_KIND)} more warnings about {page}"
            found.append(Concern(page=page, query={}, what=what, cure="Open the page."))
    return found


def _services(view: View) -> Iterator[Concern]:
    for answer in view.snapshot.answers:
        if answer.state is State.DOWN:
            yield Concern(
                page="overview",
                query={},
                what=f"{TITLES[answer.kind]} {answer.endpoint} does not answer: {answer.reason}",
                cure="Look whether it runs, and whether endpoint, TLS and token of the console fit.",
            )


def _streams(view: View) -> Iterator[Concern]:
    for row in stream_rows(view):
        if row.lag is not None and row.lag > view.settings.lag_alert_seconds:
            yield Concern(
                page="stream",
                query={"name": row.name, "order": "lag"},
                what=f"Stream {row.name} is read {seconds_words(row.lag)} late",
                cure="Give the job more cores or larger batches; if one shard alone lags, its keys are skewed.",
            )
        for trouble in row.troubles:
            yield Concern(
                page="stream",
                query={"name": row.name, "order": "lag"},
                what=f"Stream {row.name}: {trouble}",
                cure="It is retried for as long as the query's retryPatience. Look at the cause: quota, permission, "
                "network, or a query that takes nothing.",
            )
        if row.hot:
            yield Concern(
                page="stream",
                query={"name": row.name},
                what=f"Stream {row.name}: {', '.join(row.hot[:5])} {'are' if len(row.hot) > 1 else 'is'} near what a "
                "shard takes, 1 MB or 1,000 records a second",
                cure="Split it, or add shards (penstock streams reshard); if one shard alone is hot, keys are skewed.",
            )
        if row.losses:
            yield Concern(
                page="stream",
                query={"name": row.name},
                what=f"Stream {row.name}: {count_words(row.losses)} positions were lost before they were read",
                cure="The stream keeps records for a shorter time than the reader was away: lengthen its retention.",
            )


def _readers(view: View) -> Iterator[Concern]:
    for row in running_readers(view):
        waiting = row.untaken
        if waiting.seconds is not None and waiting.seconds > view.settings.lag_alert_seconds:
            records = f"{count_words(waiting.records)} records, " if waiting.records else ""
            yield Concern(
                page="readers",
                query={},
                what=f"Query {row.query} has taken nothing from its reader for {seconds_words(waiting.seconds)}: "
                f"{records}{bytes_words(waiting.size_bytes)} wait",
                cure="The query has stopped, or works on its last records for that long. Look at its progress. If it "
                "has ended, its session expires without help.",
            )
        if row.strange_shards:
            yield Concern(
                page="readers",
                query={},
                what=f"The reader of query {row.query} reports {plural(row.strange_shards, 'shard')} of streams that "
                "it did not announce",
                cure="They are not shown. Look who runs this job: it reports more than it has a right to.",
            )


def _sinks(view: View) -> Iterator[Concern]:
    for row in sink_rows(view):
        name = f"Sink {row.sink.kind} {row.sink.destination}"
        if row.throttled_per_second and row.throttled_per_second > (row.records_per_second or 0.0):
            yield Concern(
                page="sinks",
                query={},
                what=f"{name} throttles {rate_words(row.throttled_per_second)}, more than it takes",
                cure="Add shards or capacity; look for keys that all go to one shard.",
            )
        if row.sink.held_seconds:
            reason = row.sink.held_error_code or row.sink.held_reason.replace("_", " ")
            yield Concern(
                page="sinks",
                query={},
                what=f"{name}: an entry waits for {row.sink.held_seconds:.0f} s, after {row.sink.held_attempts} "
                f"attempt(s): {reason}",
                cure="Follow the code; the log of the gateway has the number of the entry.",
            )
        lost = row.sink.given_up + row.sink.dead_lettered
        if lost:
            failure = f"; the latest: {row.sink.last_failure}" if row.sink.last_failure else ""
            yield Concern(
                page="sinks",
                query={},
                what=f"{name}: {count_words(lost)} entries were given up{failure}",
                cure="Look into the dead letters.",
            )


def _jobs(view: View) -> Iterator[Concern]:
    for job in view.snapshot.jobs:
        for stage in job.stages:
            if stage.progress.state is StageState.FAILED:
                yield Concern(
                    page="job",
                    query={"id": job.job_id},
                    what=f"Job {job.job_id}: stage {stage.name} failed: {stage.progress.error or 'no words'}",
                    cure="Fix the cause and start the driver again: committed stages are not done again.",
                )


def _consumers(view: View) -> Iterator[Concern]:
    for row in consumer_rows(view):
        name = f"Consumer {row.consumer.consumer_name} of stream {row.consumer.stream_name}"
        if row.is_idle:
            cost = "" if row.cost_per_hour is None else f" and costs {usd_words(row.cost_per_hour)} an hour"
            yield Concern(
                page="consumers",
                query={},
                what=f"{name} is held by nobody{cost}",
                cure="The registry ends its own after the grace period; adopt or deregister others.",
            )
        elif row.consumer.lease and row.consumer.state in (ConsumerState.ABSENT, ConsumerState.DELETING):
            yield Concern(
                page="consumers",
                query={},
                what=f"{name} is {row.state}, though a job holds it",
                cure="Somebody deregistered it: start the job again, which registers it.",
            )
