"""`penstock-registry`: serve the consumer registry, or ask one that runs."""

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


def main(argv: Sequence[str] | None = None, *, prog: str = NAME) -> int:
    """Run a command. Returns the exit code: 1 when a registry says no, 2 for wrong settings, 3 when it is not there."""
    arguments = _parser(prog).parse_args(argv)
    if arguments.command == "serve":
        return _serve(arguments, prog)
    refusal = contradiction(arguments, sys.argv[1:] if argv is None else argv)
    if refusal is not None:
        return _refuse(refusal, ExitCode.USAGE, prog)
    return run_command(lambda: _ask(arguments, prog))


def registry_command(argv: Sequence[str], *, prog: str = "penstock registry") -> int:
    """Serve the registry; list, release and adopt stream consumers (`penstock registry`); by default `ls`."""
    return main(with_default(argv, "ls", ("ls", "gc", "release", "adopt", "serve")), prog=prog)


def consumers_command(argv: Sequence[str]) -> int:
    """`penstock registry` by an older name."""
    return registry_command(argv, prog="penstock consumers")


def _parser(prog: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(prog=prog, description="Leases on Kinesis stream consumers.")
    commands = parser.add_subparsers(dest="command", required=True)
    RegistrySettings.add_arguments(commands.add_parser("serve", help="serve the registry over gRPC"))
    add_commands(commands)
    return parser


def _serve(arguments: argparse.Namespace, prog: str) -> int:
    set_up_logging()
    try:
        settings = RegistrySettings.from_arguments(arguments)
        tracing = set_up_tracing(NAME)
    except (PenstockRpcError, AwsError, RegistrationError) as error:
        return _refuse(describe_by_flag(error, arguments, PREFIX, **FLAGS), ExitCode.USAGE, prog)
    try:
        return run_service(lambda: registry_server(settings), name=NAME)
    except (PenstockRpcError, AwsError, RegistrationError) as error:
        return _refuse(describe_by_flag(error, arguments, PREFIX), ExitCode.USAGE, prog)
    finally:
        if tracing is not None:
            tracing.shutdown()


def _ask(arguments: argparse.Namespace, prog: str) -> int:
    settings = None
    try:
        if getattr(arguments, "registry_store", None):
            return asyncio.run(look_into_store(arguments, sys.stdout))
        settings = ClientSettings.from_arguments(arguments, PREFIX)
        return asyncio.run(answer(arguments, settings, sys.stdout))
    except (PenstockRpcError, AwsError, RegistrationOptionError) as error:
        text = describe_by_flag(error, arguments, PREFIX, force="--force", store="--registry-store")
        return _refuse(text, ExitCode.USAGE, prog)
    except LeaseStoreError as error:
        return _refuse(error, code_of(error), prog)
    except RegistrationError as error:
        call = failed_call(error)
        if call is not None and settings is not None:
            explained = explain_failure(call, settings, prefix=PREFIX, command=f"{NAME} serve")
        else:
            explained = None
        if explained is not None:
            text, away = explained
            return _refuse(text, ExitCode.UNREACHABLE if away else ExitCode.FAILED, prog)
        away = isinstance(error, RegistryUnavailableError)
        return _refuse(error, ExitCode.UNREACHABLE if away else ExitCode.FAILED, prog)


def _refuse(error: Exception | str, code: int, prog: str) -> int:
    sys.stderr.write(f"{prog}: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
