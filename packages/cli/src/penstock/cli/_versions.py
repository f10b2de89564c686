"""`penstock --version`: the versions of all of Penstock's packages, and of what they stand on."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Final

from packaging.utils import canonicalize_name

from penstock.terminal import Column, Row, Table

_GROUND: Final = ("pyspark", "boto3", "grpcio", "pyarrow")


def versions_table() -> Table:
    """A row per package: name, version."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        # A folder that is no package any more has no name.
        name = canonicalize_name(distribution.metadata["Name"] or "")
        if name.startswith("penstock-") or name in _GROUND:
            versions.setdefault(name, distribution.version)
    order = sorted(versions, key=lambda name: (not name.startswith("penstock-"), name != "penstock-cli", name))
    found = [(name, versions[name]) for name in order] + [("python", platform.python_version())]
    rows = [Row([name, version], {"package": name, "version": version}) for name, version in found]
    return Table(columns=[Column("PACKAGE"), Column("VERSION")], rows=rows)
