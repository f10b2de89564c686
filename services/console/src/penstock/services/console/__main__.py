"""`penstock console`: serve the console."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Final

from penstock.aws import AwsError
from penstock.rpc.service import ServiceKind, serve
from penstock.services.console._serve import console_server
from penstock.services.console._settings import ConsoleSettings
from penstock.terminal import Parser, with_default

KIND: Final = ServiceKind("console", (AwsError,))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, `serve` if none is named. Returns the exit code: 2 for wrong settings."""
    parser: argparse.ArgumentParser = Parser(
        prog=KIND.prog,
        description="A web page that shows what Penstock's services do.",
        epilog="Each flag of serve has an environment variable behind it.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    ConsoleSettings.add_arguments(commands.add_parser("serve", help="serve the console over HTTP"))
    arguments = parser.parse_args(with_default(sys.argv[1:] if argv is None else argv, "serve", ("serve",)))
    # aiohttp logs requests that it cannot parse. They are no failures of the console, and may hold a token.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    return serve(KIND, arguments, ConsoleSettings.from_arguments, console_server)


if __name__ == "__main__":
    sys.exit(main())
