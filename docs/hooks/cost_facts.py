"""What the page that computes a bill counts by: the prices, limits and defaults of `penstock cost`, as a script."""

import json
import tomllib
from dataclasses import asdict
from importlib import resources
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from penstock.cli import _cost

_LIMITS = (
    "HOURS_OF_MONTH",
    "_KB",
    "_MB",
    "_GB",
    "_SHARD_RECORDS",
    "_DAY",
    "_WEEK",
    "_PUT_UNIT",
    "_HEARTBEATS",
    "_AGGREGATE_BYTES",
    "_ENTRY_BYTES",
    "_COMPARED_AGGREGATE_BYTES",
)


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the script: a page that is opened as a file may load one, and no JSON."""
    regions = tomllib.loads((resources.files("penstock.cli") / "prices.toml").read_text())
    facts = {
        "prices": {region: asdict(_cost.read_prices(region)) for region in regions},
        "limits": {name.lstrip("_"): getattr(_cost, name) for name in _LIMITS},
        "load": asdict(_cost.Load()),
        "columns": {
            "bill": [column.heading for column in _cost._BILL],
            "ways": [column.heading for column in _cost._COMPARED],
        },
    }
    files.append(File.generated(config, "assets/cost-facts.js", content=f"const costFacts = {json.dumps(facts)};\n"))
    return files
