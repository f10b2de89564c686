"""`penstock-registry`: serve the consumer registry, or ask one that runs."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Final

from penstock.aws import AwsError
from penstock.registration.errors import RegistrationError
from penstock.rpc import PenstockRpcError, run_service
from penstock.rpc.telemetry import set_up_tracing
from penstock.services.consumer_registry._commands import add_commands, answer
from penstock.services.consumer_registry._serve import registry_server
from penstock.services.consumer_registry._settings import RegistrySettings

NAME: Final = "penstock-registry"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 1 when a registry cannot be asked or says no, 2 for wrong settings."""
    arguments = _parser().parse_args(argv)
    if arguments.command == "serve":
        return _serve(arguments)
    return _ask(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=NAME, description="Leases on Kinesis stream consumers.")
    commands = parser.add_subparsers(dest="command", required=True)
    RegistrySettings.add_arguments(commands.add_parser("serve", help="serve the registry over gRPC"))
    add_commands(commands)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = RegistrySettings.from_arguments(arguments)
        tracing = set_up_tracing(NAME)
    except (PenstockRpcError, AwsError, RegistrationError) as error:
        return _refuse(error, 2)
    try:
        return run_service(lambda: registry_server(settings), name=NAME)
    except (AwsError, RegistrationError) as error:
        return _refuse(error, 2)
    finally:
        if tracing is not None:
            tracing.shutdown()


def _ask(arguments: argparse.Namespace) -> int:
    try:
        text, code = asyncio.run(answer(arguments))
    except PenstockRpcError as error:
        return _refuse(error, 2)
    except RegistrationError as error:
        return _refuse(error, 1)
    (sys.stderr if code == 2 else sys.stdout).write(text)
    return code


def _refuse(error: Exception, code: int) -> int:
    sys.stderr.write(f"{NAME}: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
