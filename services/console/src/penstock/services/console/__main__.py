"""`penstock console`: serve the console."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Final

from penstock.aws import AwsError
from penstock.rpc import PenstockRpcError, run_service, set_up_logging
from penstock.rpc.telemetry import set_up_tracing
from penstock.services.console._endpoints import PREFIX
from penstock.services.console._serve import console_server
from penstock.services.console._settings import ConsoleSettings
from penstock.services.console.errors import ConsoleError
from penstock.terminal import ExitCode, Parser, describe_by_flag, with_default

NAME: Final = "penstock-console"
PROG: Final = "penstock console"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, `serve` if none is named. Returns the exit code: 2 for wrong settings."""
    parser: argparse.ArgumentParser = Parser(
        prog=PROG,
        description="A web page that shows what Penstock's services do.",
        epilog="Each flag of serve has an environment variable behind it.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    ConsoleSettings.add_arguments(commands.add_parser("serve", help="serve the console over HTTP"))
    arguments = parser.parse_args(with_default(sys.argv[1:] if argv is None else argv, "serve", ("serve",)))
    set_up_logging()
    # aiohttp logs requests that it cannot parse. They are no failures of the console, and may hold a token.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    tracing = None
    try:
        settings = ConsoleSettings.from_arguments(arguments)
        tracing = set_up_tracing(NAME)
        return run_service(lambda: console_server(settings), name=NAME)
    except (PenstockRpcError, AwsError, ConsoleError) as error:
        sys.stderr.write(f"{PROG}: {describe_by_flag(error, arguments, PREFIX)}\n")
        return ExitCode.USAGE
    finally:
        if tracing is not None:
            tracing.shutdown()


if __name__ == "__main__":
    sys.exit(main())
