"""`penstock-stages`: serve the stage scheduler, ask one that runs, or explain a job without a server."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from penstock.operator_attributes.errors import (
    CompileError,
    InvalidDocumentError,
    InvalidOptionError,
    JobStoreError,
    SchedulingError,
)
from penstock.rpc import RpcOptionError, ServerSettings, run_service
from penstock.rpc.telemetry import set_up_tracing
from penstock.services.stage_scheduler._ask import add_commands, ask
from penstock.services.stage_scheduler._client import add_client_arguments
from penstock.services.stage_scheduler._explain import FORMATS, explain_file
from penstock.services.stage_scheduler._serve import stage_scheduler_server

NAME = "penstock-stages"
_PREFIX = "PENSTOCK_STAGES"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code.

    1 if a job cannot be compiled, or a service cannot be asked; 2 for wrong usage or settings; 3 if a job that was
    watched has failed.
    """
    arguments = _parser().parse_args(argv)
    if arguments.command == "explain":
        return _explain(arguments)
    if arguments.command == "serve":
        return _serve(arguments)
    return _ask(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=NAME, description="Plans and progress of staged jobs.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve the stage scheduler over gRPC")
    ServerSettings.add_arguments(serve, _PREFIX)
    serve.add_argument(
        "--max-jobs",
        type=int,
        default=os.environ.get(f"{_PREFIX}_MAX_JOBS", "1000"),
        help=f"jobs that are remembered; ended ones are forgotten first [{_PREFIX}_MAX_JOBS]",
    )
    serve.add_argument(
        "--store",
        default=os.environ.get(f"{_PREFIX}_STORE"),
        metavar="FILE",
        help=f"SQLite file that keeps jobs and claims; without it they end with the process [{_PREFIX}_STORE]",
    )
    add_commands(commands)
    explain = commands.add_parser("explain", help="print the stages of a job graph, or of a job as it stands")
    explain.add_argument("file", nargs="?", help="file that holds the graph as JSON; - for standard input")
    explain.add_argument("--job", metavar="JOB", help="instead of a file: id of a job of a service")
    explain.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    add_client_arguments(explain)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = ServerSettings.from_arguments(arguments, _PREFIX)
        tracing = set_up_tracing(NAME)
    except RpcOptionError as error:
        return _refuse(error, 2)
    try:
        store = Path(arguments.store) if arguments.store else None
        make = partial(stage_scheduler_server, settings, max_jobs=arguments.max_jobs, store=store)
        return run_service(make, name=NAME)
    except (InvalidOptionError, JobStoreError) as error:
        return _refuse(error, 2)
    finally:
        if tracing is not None:
            tracing.shutdown()


def _explain(arguments: argparse.Namespace) -> int:
    if (arguments.file is None) == (arguments.job is None):
        return _refuse(RpcOptionError("explain", "takes either a file or --job JOB"), 2)
    if arguments.job is not None:
        return _ask(arguments)
    try:
        sys.stdout.write(explain_file(arguments.file, arguments.format))
    except (OSError, UnicodeDecodeError, InvalidDocumentError) as error:
        return _refuse(error, 2)
    except (CompileError, InvalidOptionError) as error:
        return _refuse(error, 1)
    return 0


def _ask(arguments: argparse.Namespace) -> int:
    try:
        return asyncio.run(ask(arguments, sys.stdout))
    except RpcOptionError as error:
        return _refuse(error, 2)
    except SchedulingError as error:
        return _refuse(error, 1)
    except KeyboardInterrupt:
        # As a shell tells the end by a signal.
        return 130


def _refuse(error: Exception, code: int) -> int:
    sys.stderr.write(f"{NAME}: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
