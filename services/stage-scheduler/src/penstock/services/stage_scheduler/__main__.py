"""`penstock stages`: serve the stage scheduler, ask one that runs, or explain a job without a server."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial

from penstock.operator_attributes.errors import (
    CompileError,
    InvalidDocumentError,
    InvalidOptionError,
    JobStoreError,
    SchedulerClosedError,
    SchedulingError,
)
from penstock.rpc import (
    ClientSettings,
    PenstockRpcError,
    RpcOptionError,
    ServerSettings,
    explain_failure,
    failed_call,
    flags_in,
    read_number,
    read_path,
    run_service,
    set_up_logging,
)
from penstock.rpc.telemetry import set_up_tracing
from penstock.services.stage_scheduler._ask import PREFIX, add_commands, ask
from penstock.services.stage_scheduler._explain import FORMATS, explain_file
from penstock.services.stage_scheduler._serve import stage_scheduler_server
from penstock.terminal import ExitCode, Parser, describe_by_flag, run_command, with_default

NAME = "penstock-stages"
PROG = "penstock stages"
_GONE = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, `ls` if none is named. Returns the exit code.

    1 if a job cannot be compiled or is not known, or one that was watched has failed; 2 for wrong usage or settings; 3
    if the service is not there.
    """
    words = with_default(sys.argv[1:] if argv is None else argv, "ls", ("ls", "watch", "resume", "explain", "serve"))
    arguments = _parser().parse_args(words)
    if arguments.command == "explain":
        service = flags_in(words, ClientSettings.add_arguments, PREFIX)
        if arguments.job is None and service:
            text = f"{service[0]} needs --job: a file is explained without a service"
            return _refuse(text, ExitCode.USAGE)
        return run_command(lambda: _explain(arguments))
    if arguments.command == "serve":
        return _serve(arguments)
    return run_command(lambda: _ask(arguments))


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(prog=PROG, description="Plans and progress of staged jobs.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve the stage scheduler over gRPC")
    ServerSettings.add_arguments(serve, PREFIX)
    serve.add_argument(
        "--max-jobs",
        default=os.environ.get(f"{PREFIX}_MAX_JOBS", "1000"),
        help=f"jobs that are remembered; ended ones are forgotten first [{PREFIX}_MAX_JOBS]",
    )
    serve.add_argument(
        "--store",
        default=os.environ.get(f"{PREFIX}_STORE"),
        metavar="FILE",
        help=f"SQLite file that keeps jobs and claims; without it they end with the process [{PREFIX}_STORE]",
    )
    add_commands(commands)
    explain = commands.add_parser("explain", help="print the stages of a job graph, or of a job as it stands")
    explain.add_argument("file", nargs="?", help="file that holds the graph as JSON; - for standard input")
    explain.add_argument("--job", metavar="JOB", help="instead of a file: id of a job of a service")
    explain.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    ClientSettings.add_arguments(explain, PREFIX)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    set_up_logging()
    try:
        settings = ServerSettings.from_arguments(arguments, PREFIX)
        store = read_path("store", arguments.store) if arguments.store else None
        max_jobs = _count("max_jobs", arguments.max_jobs)
        tracing = set_up_tracing(NAME)
    except RpcOptionError as error:
        return _refuse(describe_by_flag(error, arguments, PREFIX), ExitCode.USAGE)
    try:
        make = partial(stage_scheduler_server, settings, max_jobs=max_jobs, store=store)
        return run_service(make, name=NAME)
    except (PenstockRpcError, JobStoreError) as error:
        return _refuse(describe_by_flag(error, arguments, PREFIX), ExitCode.USAGE)
    finally:
        if tracing is not None:
            tracing.shutdown()


def _count(name: str, text: str) -> int:
    number = read_number(name, text, int, of="a whole number")
    if number < 1:
        raise RpcOptionError(name, f"{number} must be at least 1")
    return number


def _explain(arguments: argparse.Namespace) -> int:
    if (arguments.file is None) == (arguments.job is None):
        return _refuse("give either a file or --job JOB", ExitCode.USAGE)
    if arguments.job is not None:
        return _ask(arguments)
    try:
        sys.stdout.write(explain_file(arguments.file, arguments.format))
    except BrokenPipeError:
        raise
    except OSError as error:
        cure = "name a file that holds a job graph as JSON, or - for standard input"
        return _refuse(f"{arguments.file!r} cannot be read ({error.strerror}): {cure}", ExitCode.USAGE)
    except (UnicodeDecodeError, InvalidDocumentError) as error:
        cure = "`Pipeline.graph().to_json()` gives one"
        return _refuse(f"{arguments.file!r} holds no job graph ({error}): {cure}", ExitCode.USAGE)
    except (CompileError, InvalidOptionError) as error:
        return _refuse(error, ExitCode.FAILED)
    return ExitCode.OK


def _ask(arguments: argparse.Namespace) -> int:
    try:
        settings = ClientSettings.from_arguments(arguments, PREFIX)
        return asyncio.run(ask(arguments, settings, sys.stdout))
    except RpcOptionError as error:
        return _refuse(describe_by_flag(error, arguments, PREFIX, force="--force"), ExitCode.USAGE)
    except SchedulingError as error:
        call = failed_call(error)
        cause = explain_failure(call, settings, prefix=PREFIX, command=f"{PROG} serve") if call is not None else None
        if cause is not None:
            text, gone = cause
            return _refuse(text, ExitCode.UNREACHABLE if gone else ExitCode.FAILED)
        gone = isinstance(error, SchedulerClosedError) or getattr(error, "code", "") in _GONE
        return _refuse(error, ExitCode.UNREACHABLE if gone else ExitCode.FAILED)


def _refuse(error: Exception | str, code: int) -> int:
    sys.stderr.write(f"{PROG}: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
