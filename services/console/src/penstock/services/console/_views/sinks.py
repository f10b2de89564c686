"""Sinks: what they write, what slows them, what they gave up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.services.console._sources.history import sink_series
from penstock.services.console._views.view import bytes_words, count_words, rate_words

if TYPE_CHECKING:
    from penstock.services.console._values import SinkDestination
    from penstock.services.console._views.view import Sparkline, View


@dataclass(frozen=True, kw_only=True)
class SinkRow:
    """A destination of a gateway; rates are None where not known."""

    endpoint: str
    sink: SinkDestination
    records_per_second: float | None
    bytes_per_second: float | None
    throttled_per_second: float | None
    lost_per_second: float | None
    goodput: Sparkline
    throttles: Sparkline
    limit: Sparkline
    lost: Sparkline


def sink_rows(view: View) -> list[SinkRow]:
    """One entry per gateway and destination, in the order of the gateways."""
    return [_row(view, answer.endpoint, sink) for answer in view.snapshot.sinks for sink in answer.value or ()]


def _row(view: View, endpoint: str, sink: SinkDestination) -> SinkRow:
    def series(what: str) -> tuple[str, ...]:
        return sink_series(endpoint, sink, what)

    rates = view.snapshot.rates
    return SinkRow(
        endpoint=endpoint,
        sink=sink,
        records_per_second=rates.get(series("records")),
        bytes_per_second=rates.get(series("bytes")),
        throttled_per_second=rates.get(series("throttled")),
        lost_per_second=rates.get(series("lost")),
        goodput=view.spark(series("bytes"), "Goodput", lambda rate: f"{bytes_words(rate)}/s"),
        throttles=view.spark(series("throttled"), "Throttled entries", rate_words),
        limit=view.spark(series("limit"), "Limit", count_words),
        lost=view.spark(series("lost"), "Entries given up or dead-lettered", rate_words),
    )
