"""What all pages are made of: what was known at one moment, values as text, and templates that escape them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from penstock.services.console._values import Kind, State

if TYPE_CHECKING:
    from penstock.services.console._settings import ConsoleSettings
    from penstock.services.console._values import Answer, Snapshot


MOST_ROWS: Final = 1_000
"""Rows of a table that a page shows; it says how many more there are."""
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def seconds_words(seconds: float | None) -> str:
    """Such as `0.4 s`, `12 s`, `3 min`, `5.2 h`, `12 d`; a dash where not known."""
    if seconds is None:
        return "–"
    if seconds < 0.05:
        return "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for below, per, unit in ((90, 1, "s"), (5_400, 60, "min"), (172_800, 3_600, "h")):
        if seconds < below:
            return f"{seconds / per:.0f} {unit}" if per < 3_600 else f"{seconds / per:.1f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def bytes_words(count: float) -> str:
    """Such as `512 B`, `1.2 MB`: powers of ten."""
    unit = 0
    while count >= 999.5 and unit < len(_UNITS) - 1:
        count /= 1_000
        unit += 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 or count >= 99.95 else f"{count:.1f} {_UNITS[unit]}"


def count_words(count: float) -> str:
    """Such as `1,234,567`."""
    return f"{count:,.0f}"


def rate_words(per_second: float | None, unit: str = "") -> str:
    """Such as `1,234/s`, `0.2/s`; a dash where not known."""
    if per_second is None:
        return "–"
    number = f"{per_second:,.0f}" if per_second >= 9.95 or per_second == 0 else f"{per_second:.1f}"
    return f"{number}{unit}/s"


def usd_words(usd: float | None) -> str:
    """Such as `$0.045`, `$12.30`, `under $0.001`; a dash where not known."""
    if usd is None:
        return "–"
    if 0 < usd < 0.0005:
        return "under $0.001"
    return f"${usd:,.3f}" if usd < 1 else f"${usd:,.2f}"


def shard_words(shard_id: str) -> str:
    """Such as `…42` of `shardId-000000000042`: to tell shards of one stream apart."""
    number = shard_id.removeprefix("shardId-")
    return f"…{int(number)}" if number != shard_id and number.isascii() and number.isdigit() else shard_id


def plural(count: int, one: str, several: str = "") -> str:
    """Such as `1 shard`, `1,000 shards`."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {several or one + 's'}"


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
        settings: the console's settings.
        now: monotonic seconds.
        wall_now: seconds since the epoch.
    """

    snapshot: Snapshot
    settings: ConsoleSettings
    now: float
    wall_now: float = field(default_factory=time.time)


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
        if answer.left_out:
            words += f"; at least {plural(answer.left_out, 'entry', 'entries')} too many, which were not looked at"
    elif answer.state is State.DOWN:
        shown = "nothing is known of it" if age is None else f"shown as it was {seconds_words(age)} ago"
        words = f"{answer.reason}; {shown}"
    else:
        words = "no answer yet"
    return ServiceRow(title=TITLES[answer.kind], endpoint=answer.endpoint, state=answer.state.value, words=words)


def at_least(view: View) -> dict[str, str]:
    """By what is counted: the words before a number that is too small, because not all was looked at; else nothing."""
    snapshot = view.snapshot
    cut = {
        "consumers": snapshot.is_cut(Kind.REGISTRY),
        "readers": snapshot.is_cut(Kind.READER, Kind.DRIVERS),
        "sinks": snapshot.is_cut(Kind.SINK),
        "jobs": snapshot.is_cut(Kind.STAGES),
        "streams": snapshot.is_cut(*set(Kind) - {Kind.STAGES}),
        # Readers on executors name the shards that are furthest behind.
        "lag": snapshot.are_shards_cut(on_executors=False),
        "untaken": snapshot.are_shards_cut(),
    }
    return {name: "at least " if is_cut else "" for name, is_cut in cut.items()}


MENU: Final = (
    ("overview", "/", "Overview"),
    ("consumers", "/consumers", "Consumers"),
    ("readers", "/readers", "Readers"),
    ("streams", "/streams", "Streams"),
    ("sinks", "/sinks", "Sinks"),
    ("jobs", "/jobs", "Jobs"),
)
STATIC: Final = {"console.css": "text/css", "console.js": "text/javascript", "console.svg": "image/svg+xml"}


class Templates:
    """The templates and static files of the package."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("penstock.services.console", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            seconds=seconds_words,
            bytes=bytes_words,
            count=count_words,
            rate=rate_words,
            usd=usd_words,
            shard=shard_words,
            plural=plural,
        )
        self._environment.globals |= {"url": url, "menu": MENU, "most_rows": MOST_ROWS}
        folder = resources.files("penstock.services.console") / "static"
        self.static = {name: (folder / name).read_bytes() for name in STATIC}

    def render(self, name: str, **values: Any) -> str:
        """A page."""
        return self._environment.get_template(name).render(**values)


def url(path: str, **query: object) -> str:
    """A path of the console with a query."""
    return f"{path}?{urlencode(query)}" if query else path
