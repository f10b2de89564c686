"""Makes the reference out of the code whenever the site is built: nothing of it is kept in files."""

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
_PAGES = "reference"
# No page may depend on who built it: neither folders nor hosts of this machine are anything to read.
_LOCAL = (str(ROOT), str(Path.home()) + "/", "/tmp/")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the generated pages."""
    for name, content in generated().items():
        for local in _LOCAL:
            if local in content:
                _log.warning("%s/%s has a path of this machine: %s…", _PAGES, name, local)
        files.append(File.generated(config, f"{_PAGES}/{name}", content=content))
    return files


@functools.cache
def generated() -> dict[str, str]:
    """File name and text of each page; made once in a process, as the code that is imported stays what it is."""
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
    pages["api/index.md"] = f"# Python API\n\nWhat is not here is private, and may change.\n\n{listed}\n"
    pages |= {f"api/{name}.md": reference_api.page(name) for name in names}
    return pages


def _telemetry() -> str:
    return (
        "# Spans and metrics\n\n"
        "Of all packages, by OpenTelemetry. [Metrics and traces](../how-to/metrics-and-traces.md) says how they come "
        f"to your backend.\n\n{telemetry_reference().markdown()}"
    )
