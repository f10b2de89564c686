"""Telemetry of a service: `penstock.telemetry`, with errors and words of a command.

Only services import this module; it needs the extra `service`, because libraries know the OpenTelemetry API only.
"""

from __future__ import annotations

import sys

from penstock.rpc.errors import RpcOptionError
from penstock.telemetry import Telemetry, TelemetryOptionError, configure


def set_up_tracing(service: str) -> Telemetry | None:
    """Export spans and metrics as the `OTEL_*` variables say.

    Returns what exports, to be shut down at the end; None when the variables name nothing, which is the default. Where
    the page for Prometheus is, whose port the system may have picked, is written to standard error.

    Raises:
        RpcOptionError: an exporter is not installed, or a variable cannot be used.
    """
    try:
        telemetry = configure(service)
    except TelemetryOptionError as error:
        raise RpcOptionError(error.option, error.reason) from error
    if telemetry.prometheus_address is not None:
        sys.stderr.write(f"{service}: metrics at http://{telemetry.prometheus_address}/metrics\n")
        sys.stderr.flush()
    return telemetry if telemetry.is_on else None
