"""`penstock sink`: serve the sink gateway, or look at its destinations."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

import grpc

from penstock.rpc import ClientSettings, PenstockRpcError
from penstock.rpc.service import serve
from penstock.services.sink_gateway._serve import checked_settings, gateway_server
from penstock.services.sink_gateway._settings import KIND, GatewaySettings
from penstock.services.sink_gateway._stats import add_stats_arguments, stats
from penstock.terminal import ExitCode, Parser, run_command, with_default


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, `stats` if none is named.

    Returns the exit code: 2 for wrong settings, 3 for a gateway that is not there.
    """
    parser: argparse.ArgumentParser = Parser(
        prog=KIND.prog,
        description="One rate-limited sink shared by many clients.",
        epilog="Each flag of serve has an environment variable behind it.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    GatewaySettings.add_arguments(commands.add_parser("serve", help="serve the gateway over gRPC"))
    add_stats_arguments(commands.add_parser("stats", help="look at the destinations of a gateway that runs"))
    words = sys.argv[1:] if argv is None else argv
    arguments = parser.parse_args(with_default(words, "stats", ("stats", "serve"), takes_words=True))
    if arguments.command == "serve":
        return serve(KIND, arguments, checked_settings, gateway_server)
    return run_command(lambda: _look(arguments))


def _look(arguments: argparse.Namespace) -> int:
    settings = None
    try:
        settings = ClientSettings.from_arguments(arguments, KIND.prefix)
        asyncio.run(stats(arguments, settings, sys.stdout))
    except PenstockRpcError as error:
        return KIND.refuse(error, arguments)
    except grpc.aio.AioRpcError as error:
        away = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        text = f"the gateway answered {error.code().name}: {error.details()}"
        return KIND.refuse_call(error, settings, away=away, text=text)
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
