"""Colours and templates of pictures and pages. Each text has a contrast of at least 4.5 to its background."""

import re
from collections.abc import Mapping
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from penstock.operator_attributes._render.text import bytes_text, count, place_text, role_text, seconds_text
from penstock.operator_attributes._schedule.states import StageState

LIGHT: Mapping[str, str] = {
    "page": "#f6f8fa",
    "card": "#ffffff",
    "ink": "#17232e",
    "soft": "#4d5d6b",
    "line": "#d5dde3",
    "batch": "#fdf4e3",
    "batch-line": "#dcb872",
    "stream": "#e6f2fb",
    "stream-line": "#8ebfe2",
    "node": "#ffffff",
    "node-line": "#93a4b1",
    "flow": "#64788a",
    "dam": "#a83b0c",
    "accent": "#0b5c8a",
}
DARK: Mapping[str, str] = {
    "page": "#0f161c",
    "card": "#172129",
    "ink": "#e7eef3",
    "soft": "#a9b8c4",
    "line": "#2f3d48",
    "batch": "#2c2416",
    "batch-line": "#7d6532",
    "stream": "#13293a",
    "stream-line": "#2f6790",
    "node": "#1c2831",
    "node-line": "#5d7180",
    "flow": "#8fa2b1",
    "dam": "#ff9c66",
    "accent": "#7cc4f2",
}
# Mark, light (text, fill), dark (text, fill): a state is never shown by its colour alone.
STATES: Mapping[StageState, tuple[str, tuple[str, str], tuple[str, str]]] = {
    StageState.WAITING: ("○", ("#4a5763", "#e8edf1"), ("#c3ced7", "#2a353e")),
    StageState.READY: ("◔", ("#6b4e00", "#fff0c2"), ("#ffdf8a", "#3b3110")),
    StageState.RUNNING: ("▶", ("#0a4f7d", "#d6ebfa"), ("#9ad4ff", "#123349")),
    StageState.FINISHED: ("✓", ("#17602b", "#d8f1dd"), ("#94e0a6", "#143520")),
    StageState.FAILED: ("✗", ("#97180f", "#fbdedb"), ("#ffaaa3", "#451815")),
    StageState.SKIPPED: ("⊘", ("#6a4a44", "#f0e4e1"), ("#dbbdb6", "#362a27")),
    StageState.REUSED: ("↻", ("#0c5e57", "#d0f0eb"), ("#8be0d6", "#10332f")),
    StageState.INTERRUPTED: ("‖", ("#5d3a86", "#ece1f7"), ("#d4b8f2", "#2f2140")),
}
# What XML 1.0 cannot hold, not even escaped.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


def variables(selector: str) -> str:
    """CSS that defines `--NAME`, `--STATE` and `--STATE-fill` for what `selector` names, by the reader's preference."""
    light = "".join(f"--{name}:{colour};" for name, colour in LIGHT.items())
    dark = "".join(f"--{name}:{colour};" for name, colour in DARK.items())
    for state, (_, day, night) in STATES.items():
        light += f"--{state.value}:{day[0]};--{state.value}-fill:{day[1]};"
        dark += f"--{state.value}:{night[0]};--{state.value}-fill:{night[1]};"
    return f"{selector}{{{light}}}@media(prefers-color-scheme:dark){{{selector}{{{dark}}}}}"


def render(name: str, **values: object) -> str:
    """A template of `templates/`, filled in."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("penstock.operator_attributes._render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    environment.filters.update(bytes=bytes_text, count=count, place=place_text, role=role_text, seconds=seconds_text)
    environment.globals.update(states=STATES, variables=variables)
    return environment


def _finalize(value: object) -> object:
    """Coordinates to a tenth of a pixel; text without what a page cannot hold."""
    if isinstance(value, float):
        return f"{value:.1f}"
    return _UNPRINTABLE.sub("\ufffd", value) if type(value) is str else value
