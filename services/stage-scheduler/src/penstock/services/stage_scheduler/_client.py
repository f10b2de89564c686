"""Which service the commands ask, and how they prove themselves."""

import argparse
import os
from pathlib import Path

from penstock.rpc import ClientSecurity, RpcOptionError

_PREFIX = "PENSTOCK_STAGES"
_FILES = {
    "ca_file": "PEM file: authority that signed the service's certificate; turns TLS on",
    "certificate_file": "PEM file: own certificate, for mutual TLS",
    "private_key_file": "PEM file: key of that certificate",
    "token_file": "file that holds the bearer token",
}


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that asks a service. Each has a variable of the environment behind it."""
    parser.add_argument(
        "--endpoint",
        default=os.environ.get(f"{_PREFIX}_ENDPOINT"),
        help=f"host:port of the service [{_PREFIX}_ENDPOINT]",
    )
    parser.add_argument("--tls", action="store_true", help="use TLS with the system's authorities")
    for name, words in _FILES.items():
        variable = f"{_PREFIX}_{name.upper()}"
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, default=os.environ.get(variable), help=f"{words} [{variable}]")


def client_from_arguments(arguments: argparse.Namespace) -> tuple[str, ClientSecurity]:
    """Endpoint and security. Raises: RpcOptionError."""
    if not arguments.endpoint:
        raise RpcOptionError("endpoint", f"is missing: give --endpoint or set {_PREFIX}_ENDPOINT")
    token = os.environ.get(f"{_PREFIX}_TOKEN") or None
    if arguments.token_file is not None:
        try:
            token = Path(arguments.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RpcOptionError("token_file", f"cannot be read: {error}") from error
    security = ClientSecurity(
        ca_file=_path(arguments.ca_file),
        certificate_file=_path(arguments.certificate_file),
        private_key_file=_path(arguments.private_key_file),
        token=token,
        tls=arguments.tls,
    )
    return arguments.endpoint, security


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
