"""`penstock sink`: serve the sink gateway, or look at its destinations."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Final

import grpc

from penstock.async_sink.errors import SinkError
from penstock.aws import AwsError
from penstock.rpc import ClientSettings, PenstockRpcError, explain_failure, run_service, set_up_logging
from penstock.rpc.telemetry import set_up_tracing
from penstock.services.sink_gateway._check import check_settings
from penstock.services.sink_gateway._serve import gateway_server
from penstock.services.sink_gateway._settings import PREFIX, GatewaySettings
from penstock.services.sink_gateway._stats import add_stats_arguments, stats
from penstock.terminal import ExitCode, Parser, describe_by_flag, run_command, with_default

NAME: Final = "penstock-sink"
PROG: Final = "penstock sink"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, `stats` if none is named.

    Returns the exit code: 2 for wrong settings, 3 for a gateway that is not there.
    """
    parser: argparse.ArgumentParser = Parser(
        prog=PROG,
        description="One rate-limited sink shared by many clients.",
        epilog="Each flag of serve has an environment variable behind it.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    GatewaySettings.add_arguments(commands.add_parser("serve", help="serve the gateway over gRPC"))
    add_stats_arguments(commands.add_parser("stats", help="look at the destinations of a gateway that runs"))
    words = sys.argv[1:] if argv is None else argv
    arguments = parser.parse_args(with_default(words, "stats", ("stats", "serve"), takes_words=True))
    if arguments.command == "stats":
        return run_command(lambda: _look(arguments))
    return _serve(arguments)


def _look(arguments: argparse.Namespace) -> int:
    try:
        settings = ClientSettings.from_arguments(arguments, PREFIX)
        asyncio.run(stats(arguments, settings, sys.stdout))
    except PenstockRpcError as error:
        sys.stderr.write(f"{PROG}: {describe_by_flag(error, arguments, PREFIX)}\n")
        return ExitCode.USAGE
    except grpc.aio.AioRpcError as error:
        cause = explain_failure(error, settings, prefix=PREFIX, command=f"{PROG} serve")
        if cause is not None:
            sys.stderr.write(f"{PROG}: {cause[0]}\n")
            return ExitCode.UNREACHABLE if cause[1] else ExitCode.FAILED
        sys.stderr.write(f"{PROG}: the gateway answered {error.code().name}: {error.details()}\n")
        gone = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return ExitCode.UNREACHABLE if gone else ExitCode.FAILED
    return ExitCode.OK


def _serve(arguments: argparse.Namespace) -> int:
    set_up_logging()
    try:
        settings = GatewaySettings.from_arguments(arguments)
        check_settings(settings)
        tracing = set_up_tracing(NAME)
    except (PenstockRpcError, AwsError, SinkError) as error:
        sys.stderr.write(f"{PROG}: {describe_by_flag(error, arguments, PREFIX)}\n")
        return ExitCode.USAGE
    try:
        return run_service(lambda: gateway_server(settings), name=NAME)
    except (PenstockRpcError, SinkError, OSError) as error:
        # The address is taken, say.
        sys.stderr.write(f"{PROG}: {describe_by_flag(error, arguments, PREFIX)}\n")
        return ExitCode.USAGE
    finally:
        if tracing is not None:
            tracing.shutdown()


if __name__ == "__main__":
    sys.exit(main())
