"""Generates the reference from the code whenever the site is built; no generated page is stored."""

import functools
import logging
from pathlib import Path
from typing import Any

import reference_api
import reference_commands
import reference_errors
import reference_options
import reference_proto
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from penstock.telemetry import reference as telemetry_reference

ROOT = Path(__file__).resolve().parents[2]
_log = logging.getLogger("mkdocs.hooks.reference")
_FOLDERS = {"contracts.md": "contributors"}
# How much a word of a page counts in the search (1 for a written page), and words that find the page first.
_BOOSTS = {"options.md": 2, "errors.md": 2, "contracts.md": 0.2}
_TAGS = {"options.md": ("starting position",)}
# A page must not depend on the machine that built it.
_LOCAL = (str(ROOT), str(Path.home()) + "/", "/tmp/")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the generated pages."""
    for name, content in generated().items():
        path = f"{_FOLDERS.get(name, 'reference')}/{name}"
        for local in _LOCAL:
            if local in content:
                _log.warning("%s contains a path of this machine: %s…", path, local)
        boost = _BOOSTS.get(name, 0.2 if name.startswith("api/") else 0.5)
        tags = "".join(f"\n  - {tag}" for tag in _TAGS.get(name, ()))
        head = f"---\nsearch:\n  boost: {boost}\n" + (f"tags:{tags}\n" if tags else "") + "---\n\n"
        files.append(File.generated(config, path, content=head + content))
    return files


@functools.cache
def generated() -> dict[str, str]:
    """Return the text of each page by file name. The code does not change within a process, so this runs once."""
    pages = {
        "options.md": reference_options.page(),
        "telemetry.md": _telemetry(),
        "errors.md": reference_errors.page(),
        "contracts.md": reference_proto.page(ROOT),
        "commands.md": reference_commands.commands_page(),
        "settings.md": reference_commands.settings_page(),
    }
    names = reference_api.modules()
    listed = "\n".join(f"- [`{name}`]({name}.md)" for name in names)
    pages["api/index.md"] = f"# Python API\n\nNames that are not listed here are private and may change.\n\n{listed}\n"
    pages |= {f"api/{name}.md": reference_api.page(name) for name in names}
    return pages


def _telemetry() -> str:
    return (
        "# Spans and metrics\n\n"
        "All packages report these through OpenTelemetry. [Metrics and traces](../how-to/metrics-and-traces.md) "
        f"explains how to export them.\n\n{telemetry_reference().markdown()}"
    )
