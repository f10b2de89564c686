"""`penstock-registry`: serve the consumer registry, or list what one knows."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Final

from penstock.aws import AwsError
from penstock.registration import RemoteConsumerRegistry
from penstock.registration.errors import RegistrationError
from penstock.rpc import PenstockRpcError, run_service
from penstock.services.consumer_registry._serve import registry_server
from penstock.services.consumer_registry._settings import (
    RegistrySettings,
    add_client_arguments,
    client_from_arguments,
)
from penstock.services.consumer_registry._table import json_lines, table
from penstock.services.consumer_registry._telemetry import set_up_tracing

NAME: Final = "penstock-registry"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 1 when a registry cannot be asked, 2 for wrong settings."""
    arguments = _parser().parse_args(argv)
    if arguments.command == "serve":
        return _serve(arguments)
    return _list(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=NAME, description="Leases on Kinesis stream consumers.")
    commands = parser.add_subparsers(dest="command", required=True)
    RegistrySettings.add_arguments(commands.add_parser("serve", help="serve the registry over gRPC"))
    listing = commands.add_parser("ls", help="list the consumers that a registry knows, and who holds them")
    add_client_arguments(listing)
    listing.add_argument("--stream", help="only the consumers of this stream")
    listing.add_argument("--json", action="store_true", help="one JSON object a line, with all fields")
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


def _list(arguments: argparse.Namespace) -> int:
    async def ask() -> str:
        endpoint, security = client_from_arguments(arguments)
        async with RemoteConsumerRegistry(endpoint, security) as registry:
            consumers = await registry.list_consumers(arguments.stream)
        return json_lines(consumers) if arguments.json else table(consumers)

    try:
        sys.stdout.write(asyncio.run(ask()))
    except PenstockRpcError as error:
        return _refuse(error, 2)
    except RegistrationError as error:
        return _refuse(error, 1)
    return 0


def _refuse(error: Exception, code: int) -> int:
    sys.stderr.write(f"{NAME}: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
