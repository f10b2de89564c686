"""Whatever has some words in its names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.services.console._values import name_of
from penstock.services.console._views.readers import running_readers
from penstock.services.console._views.streams import known_streams
from penstock.services.console._views.templates import url

if TYPE_CHECKING:
    from penstock.services.console._views.view import View

MOST_FOUND: Final = 100


@dataclass(frozen=True)
class Found:
    """Something that has the words.

    Attributes:
        kind: what it is, such as `stream`.
        name: what it is called.
        path: the page that shows it.
        words: more of it.
    """

    kind: str
    name: str
    path: str
    words: str = ""


def found(view: View, text: str) -> list[Found]:
    """What has all of the words, in any letter case: streams first; nothing for no words."""
    words = text.lower().split()
    if not words:
        return []
    return [one for one in _all(view) if all(word in f"{one.name} {one.words}".lower() for word in words)]


def _all(view: View) -> Iterator[Found]:
    for name, known_as in sorted(known_streams(view.snapshot, view.settings.streams).items()):
        yield Found("stream", name, url("/stream", name=name), known_as if known_as != name else "")
    for row in running_readers(view):
        words = f"{row.owner or row.address}, reads {', '.join(row.streams) or 'nothing'}"
        yield Found("reader", row.query, "/readers", words)
    for one in view.snapshot.consumers:
        holder = "held by nobody" if one.lease is None else f"held by {one.lease.job_id}"
        yield Found("consumer", one.consumer_name, "/consumers", f"of {name_of(one.stream_name)}, {holder}")
    for answer in view.snapshot.sinks:
        for sink in answer.value or ():
            yield Found("sink", f"{sink.kind} {sink.destination}", "/sinks")
    for job in view.snapshot.jobs:
        yield Found("job", job.job_id, url("/job", id=job.job_id), ", ".join(stage.name for stage in job.stages))
