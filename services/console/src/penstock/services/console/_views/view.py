"""What all pages are made of: a moment, and what was known then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.services.console._values import Kind, State
from penstock.services.console._views.sparkline import Sparkline, sparkline
from penstock.services.console._views.words import seconds_words

if TYPE_CHECKING:
    from penstock.services.console._settings import ConsoleSettings
    from penstock.services.console._sources.history import History, Series
    from penstock.services.console._values import Answer, Snapshot

TITLES = {
    Kind.REGISTRY: "Consumer registry",
    Kind.READER: "Shard reader",
    Kind.SINK: "Sink gateway",
    Kind.STAGES: "Stage scheduler",
    Kind.KINESIS: "Kinesis, for shards",
    Kind.DRIVERS: "Readers in drivers",
}
_OPTIONS = {
    Kind.REGISTRY: "--registry-endpoint",
    Kind.READER: "--reader-endpoint",
    Kind.SINK: "--sink-endpoint",
    Kind.STAGES: "--stages-endpoint",
    Kind.KINESIS: "--region, or --list-shards true",
    Kind.DRIVERS: "--registry-endpoint, or --local-readers true",
}


@dataclass(frozen=True, kw_only=True)
class View:
    """A moment.

    Attributes:
        snapshot: what the services said last.
        history: what they said before.
        settings: the console's settings.
        now: monotonic seconds.
    """

    snapshot: Snapshot
    history: History
    settings: ConsoleSettings
    now: float

    @property
    def span_seconds(self) -> float:
        """How long lines go back."""
        return self.settings.interval_seconds * (self.history.points - 1)

    def spark(self, series: Series, what: str, words: Callable[[float], str]) -> Sparkline:
        """A series as a picture."""
        seconds, points = self.settings.interval_seconds, self.history.points
        return sparkline(self.history.values(series), what, words, points=points, seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class ServiceRow:
    """A service, or the lack of one."""

    title: str
    endpoint: str
    state: str
    """`up`, `down`, `asking` or `not set up`."""
    words: str


def service_rows(view: View) -> list[ServiceRow]:
    """One entry per service that is asked, and per kind that is not set up."""
    rows = [_service_row(view, answer) for answer in view.snapshot.answers]
    asked = {answer.kind for answer in view.snapshot.answers}
    return rows + [
        ServiceRow(title=title, endpoint="", state="not set up", words=f"start the console with {_OPTIONS[kind]}")
        for kind, title in TITLES.items()
        if kind not in asked and kind is not Kind.DRIVERS
    ]


def missing(view: View, kind: Kind) -> list[ServiceRow]:
    """Those services of a kind whose page lacks something: down, not answering yet, or not set up."""
    if kind is Kind.DRIVERS:
        rows = [_service_row(view, answer) for answer in view.snapshot.drivers]
        return [row for row in rows if row.state != State.UP.value]
    return [row for row in service_rows(view) if row.title == TITLES[kind] and row.state != State.UP.value]


def endpoints(view: View) -> dict[str, str]:
    """By kind, the first endpoint of each: for words that say how a query would use it."""
    found: dict[str, str] = {}
    for answer in view.snapshot.answers:
        found.setdefault(answer.kind.value, answer.endpoint)
    return {kind.value: found.get(kind.value, "host:port") for kind in Kind}


def health(view: View) -> str:
    """All services in one sentence, for those who hear the page: it changes only when one of them does."""
    answers = view.snapshot.answers
    if not answers:
        return "No service is set up."
    down = [TITLES[answer.kind] for answer in answers if answer.state is State.DOWN]
    up = sum(answer.state is State.UP for answer in answers)
    words = f"{up} of {len(answers)} services answer"
    return f"{words}; down: {', '.join(down)}." if down else f"{words}."


def _service_row(view: View, answer: Answer[Any]) -> ServiceRow:
    age = None if answer.answered_at is None else view.now - answer.answered_at
    if answer.state is State.UP:
        words = f"answered {seconds_words(age)} ago"
    elif answer.state is State.DOWN:
        shown = "nothing is known of it" if age is None else f"shown as it was {seconds_words(age)} ago"
        words = f"{answer.reason}; {shown}"
    else:
        words = "no answer yet"
    return ServiceRow(title=TITLES[answer.kind], endpoint=answer.endpoint, state=answer.state.value, words=words)
