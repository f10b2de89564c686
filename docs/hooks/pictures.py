"""The pictures of the pages: drawn by `python docs/hooks/pictures.py`, and put into the pages when the site is built.

They are put in whole, not linked, so that they follow the page's colours and can be read aloud and searched.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from penstock.operator_attributes._render.theme import DARK, LIGHT, STATES

FOLDER = Path(__file__).resolve().parents[1] / "pages" / "assets"
_IMAGE = re.compile(r'<p><img alt="([^"]*)" src="[^"]*assets/([\w-]+\.svg)"\s*/?></p>')


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pictures' colours for readers that choose light or dark on the page."""
    light, dark = dict(LIGHT), dict(DARK)
    for state, (_mark, day, night) in STATES.items():
        light |= {state.value: day[0], f"{state.value}-fill": day[1]}
        dark |= {state.value: night[0], f"{state.value}-fill": night[1]}
    rules = []
    for scheme, colours in (("default", light), ("slate", dark)):
        values = "".join(f"--{name}:{colour};" for name, colour in colours.items())
        rules.append(f'[data-md-color-scheme="{scheme}"] .picture .ps{{{values}}}\n')
    files.append(File.generated(config, "assets/pictures.css", content="".join(rules)))
    return files


def on_page_content(content: str, **_: Any) -> str:
    """Replace images with the pictures themselves."""
    return _IMAGE.sub(lambda found: f'<div class="picture">{(FOLDER / found[2]).read_text()}</div>', content)


def drawings() -> Mapping[str, Callable[[], str]]:
    """Return each file name with the function that draws it."""
    import picture_congestion
    import picture_drawings

    return {
        "overview.svg": picture_drawings.overview,
        "ranges.svg": picture_drawings.ranges,
        "micro-batch.svg": picture_drawings.micro_batch,
        "event-time.svg": picture_drawings.event_time,
        "executor-readers.svg": picture_drawings.executor_readers,
        "lease.svg": picture_drawings.lease,
        "stages.svg": picture_drawings.stages,
        "congestion.svg": picture_congestion.plot,
    }


if __name__ == "__main__":
    # With --check, print the names of changed pictures, and write nothing.
    sys.path.insert(0, str(FOLDER.parents[2]))
    for name, draw in drawings().items():
        if "--check" not in sys.argv:
            (FOLDER / name).write_text(draw())
        elif (FOLDER / name).read_text() != draw():
            sys.stdout.write(f"{name}\n")
