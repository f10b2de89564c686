"""Which services the console asks, and how it proves itself to them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Final, Self

from penstock.rpc import ClientSecurity, RpcOptionError, Setting, add_settings, add_switch, check_address, read_switch
from penstock.services.console._values import Kind

PREFIX: Final = "PENSTOCK_CONSOLE"
SERVICES: Final = (Kind.REGISTRY, Kind.READER, Kind.SINK, Kind.STAGES)
_SEVERAL: Final = (Kind.READER, Kind.SINK)
_FILES: Final = {
    "services_ca_file": "PEM file: authority that signed the services' certificates; turns TLS on",
    "services_certificate_file": "PEM file: own certificate, for mutual TLS",
    "services_private_key_file": "PEM file: key of that certificate",
}


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A service to ask."""

    kind: Kind
    address: str
    """`host:port`."""
    ca_file: Path | None = None
    certificate_file: Path | None = None
    private_key_file: Path | None = None
    tls: bool = False
    token_file: Path | None = None
    token_variable: str | None = None
    """Variable of the environment that holds the token; None for none."""

    def security(self, environment: Mapping[str, str] | None = None) -> ClientSecurity:
        """What a channel needs; it follows files that change.

        Raises:
            RpcOptionError: a token would cross the network in plain text, or a certificate lacks its key.
        """
        environment = os.environ if environment is None else environment
        variable = self.token_variable if self.token_file is None else None
        security = ClientSecurity(
            ca_file=self.ca_file,
            certificate_file=self.certificate_file,
            private_key_file=self.private_key_file,
            tls=self.tls,
            token=environment.get(variable) if variable else None,
            token_file=self.token_file,
        )
        security.check_endpoint(self.address)
        return security

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add flags of all services; each falls back to `PENSTOCK_CONSOLE_<NAME>`."""
        for kind in SERVICES:
            words = f"host:port of the {_TITLES[kind]}"
            if kind in _SEVERAL:
                words += "; may be repeated, or name several with commas between them"
            name, variable = f"{kind.value}-endpoint", f"{PREFIX}_{kind.name}_ENDPOINT"
            # Not "append": flags would be added to what the environment says.
            action = Several if kind in _SEVERAL else "store"
            parser.add_argument(
                f"--{name}", action=action, default=os.environ.get(variable), help=f"{words} [{variable}]"
            )
        add_switch(parser, PREFIX, "services_tls", "use TLS to the services, with the authorities that gRPC trusts")
        texts = _FILES | {"services_token_file": "file that holds the bearer token of the services"}
        texts |= {f"{kind.value}_token_file": f"the same, of the {_TITLES[kind]} alone" for kind in SERVICES}
        add_settings(parser, PREFIX, starmap(Setting, texts.items()))

    @classmethod
    def from_arguments(
        cls, arguments: argparse.Namespace, environment: Mapping[str, str] | None = None
    ) -> tuple[Self, ...]:
        """The endpoints that were given.

        Raises:
            RpcOptionError: an endpoint is invalid, a file cannot be read, or a setting has no service here.
        """
        environment = os.environ if environment is None else environment
        tls = read_switch("services_tls", arguments.services_tls)
        found = []
        for kind in SERVICES:
            own_file = getattr(arguments, f"{kind.value}_token_file")
            token_file = own_file or arguments.services_token_file
            variables = (f"{PREFIX}_{kind.name}_TOKEN", f"{PREFIX}_SERVICES_TOKEN")
            addresses = _addresses(getattr(arguments, f"{kind.value}_endpoint"), kind)
            if own_file and not addresses:
                raise RpcOptionError(f"{kind.value}_token_file", f"needs --{kind.value}-endpoint")
            for address in addresses:
                endpoint = cls(
                    kind=kind,
                    address=address,
                    ca_file=_path(arguments.services_ca_file),
                    certificate_file=_path(arguments.services_certificate_file),
                    private_key_file=_path(arguments.services_private_key_file),
                    tls=tls,
                    token_file=_path(token_file),
                    token_variable=next((one for one in variables if environment.get(one)), None),
                )
                try:
                    endpoint.security(environment).check_files()
                except RpcOptionError as error:
                    has_own = own_file or (not token_file and endpoint.token_variable == variables[0])
                    whose = kind.value if has_own and error.option.startswith("token") else "services"
                    raise RpcOptionError(f"{whose}_{error.option}", error.reason) from error
                found.append(endpoint)
        for name in () if found else ("services_tls", *_FILES, "services_token_file"):
            if tls if name == "services_tls" else getattr(arguments, name):
                raise RpcOptionError(name, "no service is asked: give --reader-endpoint, or that of another service")
        return tuple(found)


_TITLES: Final = {
    Kind.REGISTRY: "consumer registry",
    Kind.READER: "shard reader",
    Kind.SINK: "sink gateway",
    Kind.STAGES: "stage scheduler",
}


def _addresses(given: list[str] | str | None, kind: Kind) -> list[str]:
    addresses = list(dict.fromkeys(parts(given)))
    for address in addresses:
        try:
            check_address(address)
        except RpcOptionError as error:
            raise RpcOptionError(f"{kind.value}_endpoint", error.reason) from error
    return addresses


def parts(given: list[str] | str | None) -> list[str]:
    """What `Several` collected, or a variable holds: parts between commas."""
    texts = [given] if isinstance(given, str) else given or []
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


class Several(argparse.Action):
    """Flags together; they replace what the environment says."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*(before if isinstance(before, list) else []), str(values)])


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
