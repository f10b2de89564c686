"""`penstock registry`: serve the consumer registry, or ask one that runs."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from penstock.aws import AwsError
from penstock.registration.errors import (
    LeaseStoreError,
    RegistrationError,
    RegistrationOptionError,
    RegistryUnavailableError,
)
from penstock.rpc import ClientSettings, PenstockRpcError
from penstock.rpc.service import serve
from penstock.services.consumer_registry._commands import add_commands, answer, code_of, contradiction, look_into_store
from penstock.services.consumer_registry._serve import KIND, RegistrySettings, registry_server
from penstock.terminal import Parser, run_command, with_default


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, `ls` if none is named.

    Returns the exit code: 1 when a registry says no, 2 for wrong settings, 3 when it is not there.
    """
    words = with_default(sys.argv[1:] if argv is None else argv, "ls", ("ls", "gc", "release", "adopt", "serve"))
    parser: argparse.ArgumentParser = Parser(prog=KIND.prog, description="Leases on Kinesis stream consumers.")
    commands = parser.add_subparsers(dest="command", required=True)
    RegistrySettings.add_arguments(commands.add_parser("serve", help="serve the registry over gRPC"))
    add_commands(commands)
    arguments = parser.parse_args(words)
    if arguments.command == "serve":
        return serve(KIND, arguments, RegistrySettings.from_arguments, registry_server)
    refusal = contradiction(arguments, words)
    return run_command(lambda: _ask(arguments)) if refusal is None else KIND.refuse(refusal)


def _ask(arguments: argparse.Namespace) -> int:
    settings = None
    try:
        if getattr(arguments, "registry_store", None):
            return asyncio.run(look_into_store(arguments, sys.stdout))
        settings = ClientSettings.from_arguments(arguments, KIND.prefix)
        return asyncio.run(answer(arguments, settings, sys.stdout))
    except (PenstockRpcError, AwsError, RegistrationOptionError) as error:
        return KIND.refuse(error, arguments, store="--registry-store")
    except LeaseStoreError as error:
        return KIND.refuse(error, code=code_of(error))
    except RegistrationError as error:
        return KIND.refuse_call(error, settings, away=isinstance(error, RegistryUnavailableError))


if __name__ == "__main__":
    sys.exit(main())
