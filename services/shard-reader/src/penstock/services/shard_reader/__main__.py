"""`penstock reader`: serve the shard reader, or look into streams."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import stat
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from penstock.aws import AwsConnectionError, AwsError, AwsOptions, AwsServiceError
from penstock.efo_consumer import EfoConsumerError
from penstock.registration.errors import RegistrationError, RegistrationOptionError
from penstock.rpc.service import serve
from penstock.services.shard_reader._lag import add_lag_arguments, lag
from penstock.services.shard_reader._serve import KIND, ReaderSettings, reader_server
from penstock.services.shard_reader._tail import add_tail_arguments, tail
from penstock.terminal import ExitCode, Parser, describe_by_flag

_OWN: Final = ("--from", "--shard", "--grep", "--schema", "--format", "--json", "--efo")
_FLAGS: Final = {"initialPosition": "--from", "streams": "STREAM", **dict(zip(_OWN, _OWN, strict=True))}


def main(argv: Sequence[str] | None = None, *, prog: str = KIND.prog) -> int:
    """Run a command. Returns the exit code: 2 for wrong settings, 3 when Kinesis cannot be reached."""
    parser: argparse.ArgumentParser = Parser(
        prog=prog, description="Long-lived Kinesis subscriptions and exact ranges."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    ReaderSettings.add_arguments(commands.add_parser("serve", help="serve the shard reader over gRPC"))
    for name, text, add in (
        ("tail", "show records as they arrive", add_tail_arguments),
        ("lag", "show how far consumers and running queries are behind, shard by shard", add_lag_arguments),
    ):
        command = commands.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}.")
        add(command)
        AwsOptions.add_arguments(command, KIND.prefix)
    arguments = parser.parse_args(argv)
    if arguments.command == "serve":
        return serve(KIND, arguments, ReaderSettings.from_arguments, reader_server)
    return _look(arguments, f"{prog} {arguments.command}")


def tail_command(argv: Sequence[str]) -> int:
    """Show the records of streams as they arrive (`penstock tail`)."""
    return main(["tail", *argv], prog="penstock")


def lag_command(argv: Sequence[str]) -> int:
    """Show how far consumers and running queries are behind, shard by shard (`penstock lag`)."""
    return main(["lag", *argv], prog="penstock")


def _look(arguments: argparse.Namespace, prog: str) -> int:
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # It logs with a traceback what it raises next.
    logging.getLogger("botocore.credentials").setLevel(logging.ERROR)
    look = tail if arguments.command == "tail" else lag
    try:
        asyncio.run(_until_told(look(arguments, AwsOptions.from_arguments(arguments), sys.stdout)))
    except RegistrationOptionError as error:
        # The name of a consumer is all that a request has of this command.
        return _refuse(f"--efo: {error.reason}", ExitCode.USAGE, prog)
    except (AwsError, EfoConsumerError, RegistrationError) as error:
        return _refuse(describe_by_flag(error, arguments, KIND.prefix, **_FLAGS), _code_of(error), prog)
    except (KeyboardInterrupt, BrokenPipeError):
        # A user may end the command at any time. What is left in the buffer has nowhere to go at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0


async def _until_told(look: Coroutine[Any, Any, None]) -> None:
    # Killed in the midst, `tail --efo` would leave a stream consumer behind that is paid for by the hour.
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(look)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    # Where no record comes, no write would show that the reader of the pipe (`| head -1`) has gone.
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode):
            loop.add_reader(sys.stdout.fileno(), task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _code_of(error: BaseException | None) -> ExitCode:
    """By what is somewhere below the error: no answer, or one that says no; else a setting is wrong."""
    from botocore.exceptions import ClientError, HTTPClientError
    from botocore.exceptions import ConnectionError as NoConnectionError

    while error is not None:
        if isinstance(error, (AwsConnectionError, HTTPClientError, NoConnectionError)):
            return ExitCode.UNREACHABLE
        if isinstance(error, (AwsServiceError, ClientError)):
            return ExitCode.FAILED
        error = error.__cause__
    return ExitCode.USAGE


def _refuse(text: str, code: int, prog: str) -> int:
    sys.stderr.write(f"{prog}: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
