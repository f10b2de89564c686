"""`penstock-reader`: serve the shard reader."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Final

from penstock.aws import AwsError
from penstock.efo_consumer import EfoConsumerError
from penstock.rpc import PenstockRpcError, run_service
from penstock.rpc.telemetry import set_up_tracing
from penstock.services.shard_reader._serve import reader_server
from penstock.services.shard_reader._settings import ReaderSettings

NAME: Final = "penstock-reader"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 2 for wrong settings."""
    parser = argparse.ArgumentParser(prog=NAME, description="Long-lived Kinesis subscriptions and exact ranges.")
    commands = parser.add_subparsers(dest="command", required=True)
    ReaderSettings.add_arguments(commands.add_parser("serve", help="serve the shard reader over gRPC"))
    return _serve(parser.parse_args(argv))


def _serve(arguments: argparse.Namespace) -> int:
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = ReaderSettings.from_arguments(arguments)
        tracing = set_up_tracing(NAME)
    except (PenstockRpcError, AwsError, EfoConsumerError) as error:
        return _refuse(error)
    try:
        return run_service(lambda: reader_server(settings), name=NAME)
    except (AwsError, EfoConsumerError) as error:
        return _refuse(error)
    finally:
        if tracing is not None:
            tracing.shutdown()


def _refuse(error: Exception) -> int:
    sys.stderr.write(f"{NAME}: {error}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
