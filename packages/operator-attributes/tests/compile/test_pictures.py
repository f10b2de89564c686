"""SVG and HTML: what they say, that they need nothing else, and how they look in a real browser."""

import json
import os
import re
import shutil
import struct
import subprocess
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.operator_attributes import (
    Boundedness,
    GlobalWindows,
    JobGraph,
    OperatorAttributes,
    StageMeasure,
    StagePlan,
    StageProgress,
    StageState,
    compile,
    estimate,
    explain,
    graphviz,
    html,
    measures_of,
    mermaid,
    stage_table,
    svg,
)
from penstock.operator_attributes._render.theme import DARK, LIGHT, STATES

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on the PATH")
END_OF_STREAM = GlobalWindows.create_with_end_of_stream_trigger()
HOSTILE = "<img src=x onerror=alert(1)>&\"'\x00"


def flights() -> StagePlan:
    graph = JobGraph("flight delays")
    graph.add_source("weather", boundedness=Boundedness.BOUNDED, call_site="flights.py:12")
    graph.add_operator("daily_weather", "weather", keyed=True, window=END_OF_STREAM, parallelism=4)
    graph.add_source("carriers", boundedness=Boundedness.BOUNDED, call_site="flights.py:28")
    graph.add_operator("carrier_history", "carriers", "daily_weather", keyed=True, window=END_OF_STREAM, parallelism=4)
    graph.add_source("flights", boundedness=Boundedness.UNBOUNDED, parallelism=2, call_site="flights.py:35")
    graph.add_operator("enriched_with_everything_that_is_known", "flights", "daily_weather", "carrier_history")
    graph.add_sink("alerts", "enriched_with_everything_that_is_known")
    graph.add_sink("report", "carrier_history", call_site="flights.py:53")
    return compile(graph)


PROGRESS = {
    "stage-1": StageProgress(state=StageState.REUSED, rows=1_095, size_bytes=20_480),
    "stage-2": StageProgress(state=StageState.FINISHED, attempts=2, seconds=48.2, rows=18_250, size_bytes=7_340_032),
    "stage-3": StageProgress(state=StageState.RUNNING, attempts=1, seconds=420.0),
    "stage-4": StageProgress(state=StageState.FAILED, attempts=1, seconds=3.0, error="no space left on device"),
}


def page() -> str:
    plan = flights()
    measures = {**measures_of(PROGRESS), "stage-3": StageMeasure(arriving_bytes_per_second=1e6)}
    return html(plan, PROGRESS, estimate=estimate(plan, measures))


def hostile() -> StagePlan:
    graph = JobGraph(HOSTILE)
    graph.add_source(HOSTILE + "s", boundedness=Boundedness.BOUNDED, call_site=HOSTILE)
    attributes = OperatorAttributes(output_only_after_end_of_stream=True)
    graph.add_operator(HOSTILE + "o", HOSTILE + "s", attributes=attributes, call_site=HOSTILE)
    graph.add_sink(HOSTILE + "t", HOSTILE + "o")
    return compile(graph)


def elements(text: str, kind: str) -> list[ET.Element]:
    return [one for one in ET.fromstring(text).iter() if one.tag == "{http://www.w3.org/2000/svg}" + kind]


def test_the_svg_shows_stages_vertices_and_blocking_edges() -> None:
    """One bold path for each blocking edge, one thin one for each other; names, states and savings as text."""
    plan = flights()
    text = svg(plan, PROGRESS, estimate=estimate(plan, measures_of(PROGRESS)))
    paths = [one.get("class") for one in elements(text, "path") if one.get("marker-end")]
    assert paths.count("blocking") == len(plan.blocking_edges)
    assert paths.count("flow") == len(plan.edges) - len(plan.blocking_edges)
    words = [one.text for one in elements(text, "text")]
    assert {"daily_weather", "full-dam operator", "unbounded source", "sink"} <= set(words)
    assert "✓ FINISHED in 48.2 s, attempt 2, 18,250 rows, 7.3 MB" in words
    assert "stream, 2 slots, checkpointed, saves 96 slot-seconds" in words


def test_long_names_are_shortened_with_the_full_name_in_the_title() -> None:
    """The picture stays readable; the whole name is in the title that a pointer or a screen reader finds."""
    text = svg(flights())
    assert "enriched_with…hat_is_known" in text.replace("enriched_with_everything_that_is_known", "")
    titles = [one.text or "" for one in elements(text, "title")]
    assert any(title.startswith("enriched_with_everything_that_is_known: operator") for title in titles)
    assert "weather: bounded source at flights.py:12" in titles


def test_a_picture_is_the_same_each_time() -> None:
    """It can be kept under version control."""
    assert svg(flights(), PROGRESS) == svg(flights(), PROGRESS)
    assert page() == page()


def test_boxes_do_not_overlap() -> None:
    """Neither stages nor the vertices within them."""
    for css in (("batch", "stream"), ("node",)):
        boxes = [
            tuple(float(one.get(key, "")) for key in ("x", "y", "width", "height"))
            for one in elements(svg(flights(), PROGRESS), "rect")
            if one.get("class") in css
        ]
        assert len(boxes) >= 4
        for number, (x, y, width, height) in enumerate(boxes):
            for left, top, wide, high in boxes[number + 1 :]:
                assert x + width <= left or left + wide <= x or y + height <= top or top + high <= y


def test_names_cannot_break_a_page() -> None:
    """Markup, quotes and characters that XML cannot hold are text like any other."""
    plan = hostile()
    for text in (svg(plan), html(plan), html(plan, {"stage-1": StageProgress(error=HOSTILE)})):
        assert "<img" not in text
        assert "\x00" not in text
        assert "&lt;img src=x" in text
    ET.fromstring(svg(plan))


def test_the_page_needs_nothing_else() -> None:
    """No script, no address, and a policy that would refuse both."""
    text = page()
    assert "<script" not in text
    assert "default-src 'none'" in text
    assert set(re.findall(r"https?://[^\"' <)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\bsrc=|\bhref=\"(?!#)|@import|url\((?!#)", text)
    assert set(re.findall(r'href="#([^"]*)"', text)) <= set(re.findall(r'id="([^"]*)"', text))


def test_the_page_holds_call_sites_sizes_times_and_savings() -> None:
    """All that explain tells, and what it is worth."""
    text = page()
    for words in ("flights.py:12", "18,250", "7.3 MB", "48.2 s", "no space left on device", "2 × 48.2 s", "96.4"):
        assert words in text
    assert text.count("class=blocks") == len(flights().blocking_edges)


def test_the_page_can_be_read_aloud_and_used_with_a_keyboard() -> None:
    """It says its language, its tables have heads, and what scrolls can be reached."""
    text = page()
    assert '<html lang="en">' in text
    assert text.count("<caption>") == text.count("<table>") == 3
    assert 'scope="col"' in text
    assert 'scope="row"' in text
    assert text.count('class="scroll" tabindex="0" role="region" aria-labelledby=') == 4
    assert 'role="img" aria-labelledby="ps-title ps-desc"' in text


@pytest.mark.parametrize("state", StageState)
def test_every_form_shows_each_state_as_text(state: StageState) -> None:
    """Readers who cannot distinguish colours get the same information."""
    progress = {"stage-1": StageProgress(state=state, attempts=1)}
    plan = flights()
    for text in (explain(plan, progress), mermaid(plan, progress), graphviz(plan, progress)):
        assert state.value.upper() in text
    for text in (svg(plan, progress), html(plan, progress)):
        assert STATES[state][0] in text
        assert state.value.upper() in text


def test_an_empty_plan_has_a_page_too() -> None:
    """Nothing to see is not an error."""
    plan = compile(JobGraph("nothing yet"))
    assert "nothing yet" in html(plan)
    ET.fromstring(svg(plan))


def luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_every_text_can_be_read_on_what_is_behind_it() -> None:
    """WCAG's contrast of 4.5 for text and 3 for lines, in light and in dark."""
    for theme in (LIGHT, DARK):
        for ground in ("page", "card", "batch", "stream", "node"):
            for ink in ("ink", "soft"):
                assert contrast(theme[ink], theme[ground]) >= 4.5
            for line in ("dam", "flow"):
                assert contrast(theme[line], theme[ground]) >= 3
        assert contrast(theme["dam"], theme["card"]) >= 4.5
    for _, day, night in STATES.values():
        assert contrast(*day) >= 4.5
        assert contrast(*night) >= 4.5


def browse(tmp_path: Path, html: str, *arguments: str) -> str:
    """Open a page in the browser; gives what it prints."""
    assert BROWSER is not None
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8")
    # Its own sandbox does not work for root, as which containers run.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    command = [BROWSER, "--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, *sandbox, *arguments, path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


def pixels(png: bytes) -> tuple[int, int, list[bytes]]:
    """Width, bytes per pixel and rows of an eight-bit picture that is not interlaced."""
    width, _, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", png[16:29])
    assert (depth, interlaced) == (8, 0)
    size = {2: 3, 6: 4}[colour]
    packed, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            packed += png[at + 8 : at + 8 + length]
        at += 12 + length
    raw = zlib.decompress(packed)
    rows, before = [], bytearray(width * size)
    for start in range(0, len(raw), width * size + 1):
        kind, row = raw[start], bytearray(raw[start + 1 : start + 1 + width * size])
        for place in range(len(row)):
            left = row[place - size] if place >= size else 0
            corner = before[place - size] if place >= size else 0
            row[place] = (row[place] + _predict(kind, left, before[place], corner)) & 0xFF
        rows.append(bytes(row))
        before = row
    return width, size, rows


def _predict(kind: int, left: int, up: int, corner: int) -> int:
    if kind == 4:
        guess = left + up - corner
        return min((abs(guess - one), order, one) for order, one in enumerate((left, up, corner)))[2]
    return (0, left, up, (left + up) // 2)[kind]


@needs_browser
@pytest.mark.parametrize(("theme", "preference"), [(LIGHT, 1), (DARK, 0)], ids=["light", "dark"])
def test_the_page_is_drawn_by_a_real_browser(tmp_path: Path, theme: Mapping[str, str], preference: int) -> None:
    """A screenshot shows the dam and both kinds of stages, in the colours that the reader prefers."""
    shot = tmp_path / "page.png"
    prefers = f"--blink-settings=preferredColorScheme={preference}"
    browse(tmp_path, page(), "--window-size=800,700", prefers, f"--screenshot={shot}")
    width, size, rows = pixels(shot.read_bytes())
    assert width == 800
    colours = {row[place : place + 3].hex() for row in rows for place in range(0, len(row), size)}
    for name in ("page", "card", "ink", "dam", "batch", "stream"):
        assert theme[name][1:] in colours, name


@needs_browser
def test_the_browser_finds_no_markup_in_names(tmp_path: Path) -> None:
    """It shows them as the user wrote them."""
    seen = browse(tmp_path, html(hostile()), "--dump-dom")
    assert "<img" not in seen
    assert "onerror=alert(1)&gt;" in seen


def fifty_stages() -> str:
    graph = JobGraph("fifty stages")
    graph.add_source("table", boundedness=Boundedness.BOUNDED, call_site="/home/someone/a/very/long/path/to/jobs.py:1")
    for number in range(49):
        before = "table" if number < 5 else f"summary_{number // 2}"
        graph.add_operator(f"summary_{number}", before, keyed=True, window=END_OF_STREAM)
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("joined", "live", *(f"summary_{number}" for number in range(40, 49)))
    graph.add_sink("out", "joined")
    plan = compile(graph)
    state = StageProgress(state=StageState.FINISHED, attempts=12, seconds=4_321.5, rows=10**9, size_bytes=10**12)
    progress = {stage.id: state for stage in plan.stages}
    return html(plan, progress, estimate=estimate(plan, measures_of(progress)))


@needs_browser
@pytest.mark.parametrize("text", [page(), fifty_stages()], ids=["four stages", "fifty stages"])
def test_words_fit_their_boxes_in_the_browser(tmp_path: Path, text: str) -> None:
    """As the browser measures them, with the font that it has; and the page never scrolls sideways as a whole."""
    script = """
      const out = [];
      for (const g of document.querySelectorAll('svg g g g, svg g g')) {
        const rect = g.querySelector(':scope > rect');
        if (!rect) continue;
        const box = rect.getBBox();
        for (const text of g.querySelectorAll(':scope > text, :scope > a > text')) {
          const one = text.getBBox();
          const before = text.previousElementSibling;
          const badge = before && before.getAttribute('rx') === '11' ? before.getBBox() : box;
          if (one.x < badge.x || one.x + one.width > badge.x + badge.width) out.push(text.textContent);
        }
      }
      const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
      document.body.innerHTML = '';
      document.title = JSON.stringify({out, wide});
    """
    policy = re.compile(r"<meta http-equiv=[^>]*>")
    seen = browse(
        tmp_path,
        policy.sub("", text).replace("</body>", f"<script>{script}</script></body>"),
        "--window-size=500,700",
        "--dump-dom",
    )
    found = re.search(r"<title>(\{.*?\})</title>", seen)
    assert found is not None
    assert json.loads(found[1]) == {"out": [], "wide": False}


def test_a_plan_is_a_table_in_a_notebook_and_its_text_has_lines() -> None:
    """A row per stage, with how far it has come where that is known; names and reasons are text."""
    graph = JobGraph("<b>job</b>")
    graph.add_source("<script>", boundedness=Boundedness.BOUNDED)
    graph.add_operator("daily", "<script>", keyed=True, window=GlobalWindows.create_with_end_of_stream_trigger())
    graph.add_sink("out", "daily")
    plan = compile(graph)
    progress = {plan.stages[0].id: StageProgress(state=StageState.FAILED, attempts=1, error="<i>no</i>")}
    for shown in (plan._repr_html_(), stage_table(plan, progress), explain(plan, progress)._repr_html_()):
        assert "&lt;script&gt;" in shown
        assert "&lt;b&gt;job&lt;/b&gt;" in shown
        assert not {"<script>", "<b>", "<i>"} & set(re.findall("<[a-z]+>", shown))
    assert stage_table(plan).count("<tr>") == len(plan.stages) + 1
    assert "FAILED" in stage_table(plan, progress)
    assert "<th>state</th>" not in plan._repr_html_()
    assert explain(plan)._repr_html_().startswith("<pre>")
    assert (isinstance(explain(plan), str), explain(plan).splitlines()[0].startswith("<b>job</b>: ")) == (True, True)
