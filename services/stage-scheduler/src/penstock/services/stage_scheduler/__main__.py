"""`penstock stages`: serve the stage scheduler, ask one that runs, or explain a job without a server."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from penstock.operator_attributes.errors import SchedulerAwayError, SchedulingError
from penstock.rpc import ClientSettings, RpcOptionError, flags_in
from penstock.rpc.service import serve
from penstock.services.stage_scheduler._ask import add_commands, ask
from penstock.services.stage_scheduler._serve import KIND, StagesSettings, stage_scheduler_server
from penstock.services.stage_scheduler._show import FORMATS, explain_file
from penstock.terminal import Parser, run_command, with_default

_GONE = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, `ls` if none is named. Returns the exit code.

    1 if a job cannot be compiled or is not known, or one that was watched has failed; 2 for wrong usage or settings; 3
    if the service is not there.
    """
    words = with_default(sys.argv[1:] if argv is None else argv, "ls", ("ls", "watch", "resume", "explain", "serve"))
    arguments = _parser().parse_args(words)
    if arguments.command == "serve":
        return serve(KIND, arguments, StagesSettings.from_arguments, stage_scheduler_server)
    if arguments.command == "explain":
        service = flags_in(words, ClientSettings.add_arguments, KIND.prefix)
        if arguments.job is None and service:
            return KIND.refuse(f"{service[0]} needs --job: a file is explained without a service")
        if (arguments.file is None) == (arguments.job is None):
            return KIND.refuse("give either a file or --job JOB")
        if arguments.job is None:
            return run_command(lambda: explain_file(arguments.file, arguments.format))
    return run_command(lambda: _ask(arguments))


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(prog=KIND.prog, description="Plans and progress of staged jobs.")
    commands = parser.add_subparsers(dest="command", required=True)
    StagesSettings.add_arguments(commands.add_parser("serve", help="serve the stage scheduler over gRPC"))
    add_commands(commands)
    explain = commands.add_parser("explain", help="print the stages of a job graph, or of a job as it stands")
    explain.add_argument("file", nargs="?", help="file that holds the graph as JSON; - for standard input")
    explain.add_argument("--job", metavar="JOB", help="instead of a file: id of a job of a service")
    explain.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    ClientSettings.add_arguments(explain, KIND.prefix)
    return parser


def _ask(arguments: argparse.Namespace) -> int:
    settings = None
    try:
        settings = ClientSettings.from_arguments(arguments, KIND.prefix)
        return asyncio.run(ask(arguments, settings, sys.stdout))
    except RpcOptionError as error:
        return KIND.refuse(error, arguments)
    except SchedulingError as error:
        away = isinstance(error, SchedulerAwayError) and error.status in _GONE
        return KIND.refuse_call(error, settings, away=away)


if __name__ == "__main__":
    sys.exit(main())
