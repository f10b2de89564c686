"""`penstock-sink`: serve the sink gateway."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from typing import Final

from penstock.async_sink.errors import SinkError
from penstock.aws import AwsError
from penstock.rpc import PenstockRpcError, run_service
from penstock.rpc.telemetry import set_up_tracing
from penstock.services.sink_gateway._check import check_settings
from penstock.services.sink_gateway._serve import gateway_server
from penstock.services.sink_gateway._settings import PREFIX, GatewaySettings

NAME: Final = "penstock-sink"


def _told(error: Exception, arguments: argparse.Namespace) -> str:
    """The error in the words of the command line: an option by its flag and its variable."""
    option = getattr(error, "option", None)
    if isinstance(option, str):
        name = re.sub("[A-Z]", lambda found: "_" + found[0].lower(), option).removeprefix("aws_")
        if hasattr(arguments, name):
            reason = str(error).removeprefix(f"{option}: ")
            return f"--{name.replace('_', '-')} ({PREFIX}_{name.upper()}): {reason}"
        if isinstance(error, AwsError):
            # An option of other callers: the reason says what is missing.
            return str(error).removeprefix(f"{option}: ")
    return str(error)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 2 for wrong settings."""
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="One rate-limited sink shared by many clients.",
        epilog="Each flag of serve has an environment variable behind it.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    GatewaySettings.add_arguments(commands.add_parser("serve", help="serve the gateway over gRPC"))
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = GatewaySettings.from_arguments(arguments)
        check_settings(settings)
        tracing = set_up_tracing(NAME)
    except (PenstockRpcError, AwsError, SinkError) as error:
        sys.stderr.write(f"{NAME}: {_told(error, arguments)}\n")
        return 2
    try:
        return run_service(lambda: gateway_server(settings), name=NAME)
    except (SinkError, OSError) as error:
        # The journal's folder: damaged, in use, or not writable.
        sys.stderr.write(f"{NAME}: {_told(error, arguments)}\n")
        return 2
    finally:
        if tracing is not None:
            tracing.shutdown()


if __name__ == "__main__":
    sys.exit(main())
