"""How a command reaches a service: flags, each with an environment variable behind it."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from penstock.rpc._flags import add_switch, check_address, read_switch
from penstock.rpc._security.security import ClientSecurity
from penstock.rpc.errors import RpcOptionError

_FILES: Final = {
    "ca_file": "PEM of the authority that signed the service's certificate: turns TLS on",
    "certificate_file": "PEM of the client's certificate, for mutual TLS",
    "private_key_file": "PEM of that certificate's private key",
    "token_file": "file that holds the bearer token",
}


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Where a service is, and how a command proves itself to it."""

    endpoint: str
    """`host:port`."""
    security: ClientSecurity
    """TLS and token."""

    @staticmethod
    def add_arguments(parser: argparse._ActionsContainer, prefix: str, *, endpoint_flag: str = "--endpoint") -> None:
        """Add the flags; each falls back to `<prefix>_<NAME>`. A token comes from a file or the environment only.

        A command that knows other endpoints, too, names the service's by a flag of its own.
        """
        for name, text in {"endpoint": "where the service listens", **_FILES}.items():
            variable = f"{prefix}_{name.upper()}"
            parser.add_argument(
                endpoint_flag if name == "endpoint" else "--" + name.replace("_", "-"),
                dest=name,
                default=os.environ.get(variable),
                metavar="HOST:PORT" if name == "endpoint" else "FILE",
                help=f"{text} [{variable}]",
            )
        add_switch(parser, prefix, "tls", "use TLS with the authorities that gRPC trusts")

    @classmethod
    def from_arguments(
        cls, arguments: argparse.Namespace, prefix: str, environment: Mapping[str, str] | None = None
    ) -> Self:
        """Settings from the flags of `add_arguments`.

        Raises:
            RpcOptionError: the endpoint is missing or invalid, a file cannot be read, or a switch is not on or off.
        """
        environment = os.environ if environment is None else environment
        if not arguments.endpoint:
            raise RpcOptionError("endpoint", f"is missing: give --endpoint HOST:PORT, or set {prefix}_ENDPOINT")
        check_address(arguments.endpoint)

        def file(name: str) -> Path | None:
            return Path(value) if (value := getattr(arguments, name)) else None

        token_file = file("token_file")
        security = ClientSecurity(
            ca_file=file("ca_file"),
            certificate_file=file("certificate_file"),
            private_key_file=file("private_key_file"),
            token=None if token_file else environment.get(f"{prefix}_TOKEN") or None,
            token_file=token_file,
            tls=read_switch("tls", arguments.tls),
        )
        security.check_files()
        return cls(endpoint=arguments.endpoint, security=security)
