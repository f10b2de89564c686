"""What Spark's processes need to know, so that they export as their driver does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.telemetry._log_secrets import holds_secret
from penstock.telemetry._process import PROVIDERS
from penstock.telemetry._settings import HEADERS_FILE, PROMETHEUS

_OTHERS: Final = (HEADERS_FILE, "PENSTOCK_METRICS_PER_SHARD", "PENSTOCK_SPANS_PER_REQUEST")
"""Variables of Penstock's packages that say what is measured."""


def child_environment(environment: Mapping[str, str], service_name: str) -> dict[str, str]:
    """The variables of a process that Spark starts: all of `OTEL_*` but secrets, what of Penstock's says what is
    measured, and the providers of this package."""
    # Spark shows its configuration in its web page and its event log.
    variables = {
        name: value for name, value in environment.items() if name.startswith("OTEL_") and not holds_secret(name, value)
    }
    variables |= {name: environment[name] for name in _OTHERS if name in environment}
    exporters = [one.strip() for one in variables.get("OTEL_METRICS_EXPORTER", "").split(",") if one.strip()]
    if PROMETHEUS in exporters:
        # A page per worker would be found by nobody.
        others = [one for one in exporters if one != PROMETHEUS]
        variables["OTEL_METRICS_EXPORTER"] = ",".join(others) or "none"
    variables.setdefault("OTEL_SERVICE_NAME", service_name)
    return {**variables, **PROVIDERS}


def executor_configuration(environment: Mapping[str, str], service_name: str) -> dict[str, str]:
    """The same as Spark's settings for executors."""
    return {f"spark.executorEnv.{name}": value for name, value in child_environment(environment, service_name).items()}


def withheld(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that are set here and that executors are not given."""
    found = [name for name, value in environment.items() if name.startswith("OTEL_") and holds_secret(name, value)]
    return tuple(sorted(found))
