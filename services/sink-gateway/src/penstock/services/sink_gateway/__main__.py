"""`penstock-sink`: serve the sink gateway."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Final

from penstock.async_sink.errors import SinkError
from penstock.aws import AwsError
from penstock.rpc import PenstockRpcError, run_service
from penstock.rpc.telemetry import set_up_tracing
from penstock.services.sink_gateway._serve import gateway_server
from penstock.services.sink_gateway._settings import GatewaySettings

NAME: Final = "penstock-sink"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 2 for wrong settings."""
    parser = argparse.ArgumentParser(prog=NAME, description="One rate-limited sink shared by many clients.")
    commands = parser.add_subparsers(dest="command", required=True)
    GatewaySettings.add_arguments(commands.add_parser("serve", help="serve the gateway over gRPC"))
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = GatewaySettings.from_arguments(arguments)
        tracing = set_up_tracing(NAME)
    except (PenstockRpcError, AwsError, SinkError) as error:
        sys.stderr.write(f"{NAME}: {error}\n")
        return 2
    try:
        return run_service(lambda: gateway_server(settings), name=NAME)
    except (SinkError, OSError) as error:
        # The journal's folder: damaged, in use, or not writable.
        sys.stderr.write(f"{NAME}: {error}\n")
        return 2
    finally:
        if tracing is not None:
            tracing.shutdown()


if __name__ == "__main__":
    sys.exit(main())
