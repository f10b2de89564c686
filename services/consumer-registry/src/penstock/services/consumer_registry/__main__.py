"""`penstock registry`: serve the consumer registry, or ask one that runs."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from penstock.aws import AwsError
from penstock.registration.errors import (
    LeaseStoreError,
    RegistrationError,
    RegistrationOptionError,
    RegistryUnavailableError,
)
from penstock.rpc import ClientSettings, PenstockRpcError, explain_failure, failed_call, run_service, set_up_logging
from penstock.rpc.telemetry import set_up_tracing
from penstock.services.consumer_registry._commands import add_commands, answer, contradiction
from penstock.services.consumer_registry._look import code_of, look_into_store
from penstock.services.consumer_registry._serve import registry_server
from penstock.services.consumer_registry._settings import FLAGS, PREFIX, RegistrySettings
from penstock.terminal import ExitCode, Parser, describe_by_flag, run_command, with_default

NAME: Final = "penstock-registry"
PROG: Final = "penstock registry"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, `ls` if none is named.

    Returns the exit code: 1 when a registry says no, 2 for wrong settings, 3 when it is not there.
    """
    words = with_default(sys.argv[1:] if argv is None else argv, "ls", ("ls", "gc", "release", "adopt", "serve"))
    arguments = _parser().parse_args(words)
    if arguments.command == "serve":
        return _serve(arguments)
    refusal = contradiction(arguments, words)
    if refusal is not None:
        return _refuse(refusal, ExitCode.USAGE)
    return run_command(lambda: _ask(arguments))


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(prog=PROG, description="Leases on Kinesis stream consumers.")
    commands = parser.add_subparsers(dest="command", required=True)
    RegistrySettings.add_arguments(commands.add_parser("serve", help="serve the registry over gRPC"))
    add_commands(commands)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    set_up_logging()
    try:
        settings = RegistrySettings.from_arguments(arguments)
        tracing = set_up_tracing(NAME)
    except (PenstockRpcError, AwsError, RegistrationError) as error:
        return _refuse(describe_by_flag(error, arguments, PREFIX, **FLAGS), ExitCode.USAGE)
    try:
        return run_service(lambda: registry_server(settings), name=NAME)
    except (PenstockRpcError, AwsError, RegistrationError) as error:
        return _refuse(describe_by_flag(error, arguments, PREFIX), ExitCode.USAGE)
    finally:
        if tracing is not None:
            tracing.shutdown()


def _ask(arguments: argparse.Namespace) -> int:
    settings = None
    try:
        if getattr(arguments, "registry_store", None):
            return asyncio.run(look_into_store(arguments, sys.stdout))
        settings = ClientSettings.from_arguments(arguments, PREFIX)
        return asyncio.run(answer(arguments, settings, sys.stdout))
    except (PenstockRpcError, AwsError, RegistrationOptionError) as error:
        text = describe_by_flag(error, arguments, PREFIX, force="--force", store="--registry-store")
        return _refuse(text, ExitCode.USAGE)
    except LeaseStoreError as error:
        return _refuse(error, code_of(error))
    except RegistrationError as error:
        call = failed_call(error)
        if call is not None and settings is not None:
            explained = explain_failure(call, settings, prefix=PREFIX, command=f"{PROG} serve")
        else:
            explained = None
        if explained is not None:
            text, away = explained
            return _refuse(text, ExitCode.UNREACHABLE if away else ExitCode.FAILED)
        away = isinstance(error, RegistryUnavailableError)
        return _refuse(error, ExitCode.UNREACHABLE if away else ExitCode.FAILED)


def _refuse(error: Exception | str, code: int) -> int:
    sys.stderr.write(f"{PROG}: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
