"""Asks a service of advisories (OSV's API) about all that is locked."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence

from dependencies._lock import Locked

SERVICE = "https://api.osv.dev"
_TIMEOUT_SECONDS = 10.0


class AuditUnavailableError(Exception):
    """The service cannot be asked: nothing is known of what is locked."""


def advisories(locked: Sequence[Locked], service: str = SERVICE) -> dict[str, list[str]]:
    """Identifiers of known vulnerabilities, by `name version`; those without one are left out.

    Raises:
        AuditUnavailableError: it cannot be reached, or answers otherwise than its contract says.
    """
    queries = [{"package": {"name": one.name, "ecosystem": "PyPI"}, "version": one.version} for one in locked]
    request = urllib.request.Request(
        f"{service}/v1/querybatch",
        data=json.dumps({"queries": queries}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            results = json.load(answer)["results"]
        found = [sorted(one["id"] for one in result.get("vulns") or ()) for result in results]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AuditUnavailableError(str(getattr(error, "reason", None) or error)) from error
    if len(found) != len(locked):
        raise AuditUnavailableError("it did not answer all that was asked")
    return {f"{one.name} {one.version}": ids for one, ids in zip(locked, found, strict=True) if ids}
