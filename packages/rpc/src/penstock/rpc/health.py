"""Ask a service whether it serves, by gRPC's health checking protocol or by HTTP: `python -m penstock.rpc.health`.

For the health checks of containers, by the settings that the service itself has, and of anything else, by an endpoint.
Health needs no token; a server that wants one answers a call without it for itself as a whole. Of a service with TLS on
the same machine, its own certificate is what is trusted, whatever name is in it: nothing has to be configured twice.
It needs the extra `service`.
"""

from __future__ import annotations

import argparse
import http.client
import ipaddress
import os
import socket
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.rpc._client.channel import open_channel
from penstock.rpc._flags import check_address
from penstock.rpc._security.security import ClientSecurity
from penstock.rpc.errors import RpcOptionError
from penstock.terminal import Parser, positive_seconds

__all__ = ["HealthAnswer", "check_health", "check_http", "main", "own_endpoint"]

SERVING: Final = "SERVING"
NOT_SERVING: Final = "NOT_SERVING"
UNREACHABLE: Final = "UNREACHABLE"


@dataclass(frozen=True, kw_only=True)
class HealthAnswer:
    """What a service says of itself."""

    status: str
    """`SERVING`, `NOT_SERVING`, `SERVICE_UNKNOWN`, or `UNREACHABLE` when there was no answer in time."""
    detail: str = ""
    """Why there was no answer."""

    @property
    def is_serving(self) -> bool:
        """Whether it takes calls."""
        return self.status == SERVING


def check_health(
    endpoint: str,
    security: ClientSecurity | None = None,
    *,
    service: str = "",
    timeout_seconds: float = 5.0,
    server_name: str | None = None,
) -> HealthAnswer:
    """Ask `host:port` for the health of a service by its full name; without one, of the server as a whole.

    If the server needs a token and you name a service, give the token in `security`: without it the server reads no
    message, and answers for itself as a whole.

    `server_name` is the name in the certificate, if the endpoint has another name.

    Raises:
        RpcOptionError: a file cannot be read.
    """
    security = security or ClientSecurity()
    if server_name is not None:
        security = replace(security, server_name=server_name)
    channel = open_channel(endpoint, security)
    with channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_seconds)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return HealthAnswer(status="SERVICE_UNKNOWN", detail=service)
            return HealthAnswer(status=UNREACHABLE, detail=f"{error.code().name}: {error.details()}")
    return HealthAnswer(status=health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def check_http(
    endpoint: str, path: str, security: ClientSecurity | None = None, *, timeout_seconds: float = 5.0
) -> HealthAnswer:
    """Ask `host:port` by HTTP for a path that answers 200 when all is well; for services that are pages.

    With an authority the answer has to come by TLS from one that it signed, or that it is, whatever name it goes by;
    with `tls` alone, from one of the system's authorities and by the endpoint's name.

    Raises:
        RpcOptionError: the authority's file cannot be read, or the endpoint has no port.
    """
    security = security or ClientSecurity()
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    if not port.isdecimal():
        raise RpcOptionError("endpoint", f"{endpoint!r} is not a HOST:PORT, by which pages are asked")
    connection: http.client.HTTPConnection
    if security.uses_tls:
        context = ssl.create_default_context() if security.ca_file is None else _trusting(security.ca_file)
        if security.certificate_file is not None:
            context.load_cert_chain(security.certificate_file, security.private_key_file)
        connection = http.client.HTTPSConnection(host, int(port), timeout=timeout_seconds, context=context)
    else:
        connection = http.client.HTTPConnection(host, int(port), timeout=timeout_seconds)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return HealthAnswer(status=UNREACHABLE, detail=str(error) or type(error).__name__)
    finally:
        connection.close()
    return HealthAnswer(status=SERVING) if status == 200 else HealthAnswer(status=NOT_SERVING, detail=f"HTTP {status}")


def own_endpoint(prefix: str, environment: Mapping[str, str] | None = None) -> tuple[str, ClientSecurity, str | None]:
    """Endpoint, security and server name of the service that has the `<prefix>_…` settings, on this machine.

    Under mutual TLS a client's certificate is needed: `<prefix>_HEALTH_CERTIFICATE_FILE` and
    `<prefix>_HEALTH_PRIVATE_KEY_FILE`, by default the service's own.

    Raises:
        RpcOptionError: the service listens on no port, or a certificate cannot be used.
    """
    environment = os.environ if environment is None else environment
    host = _reachable(environment.get(f"{prefix}_HOST") or "127.0.0.1")
    port = environment.get(f"{prefix}_PORT") or ""
    if not port.isdecimal() or int(port) == 0:
        raise RpcOptionError(f"{prefix}_PORT", "names no port; set it to the one that the service listens on")
    endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    certificate = environment.get(f"{prefix}_CERTIFICATE_FILE")
    if not certificate:
        return endpoint, ClientSecurity(), None
    own: list[Path | None] = [None, None]
    if environment.get(f"{prefix}_CLIENT_CA_FILE"):
        for index, name in enumerate(("CERTIFICATE_FILE", "PRIVATE_KEY_FILE")):
            path = environment.get(f"{prefix}_HEALTH_{name}") or environment.get(f"{prefix}_{name}")
            own[index] = Path(path) if path else None
    security = ClientSecurity(ca_file=Path(certificate), certificate_file=own[0], private_key_file=own[1])
    try:
        return endpoint, security, _served_name(host, int(port), Path(certificate))
    except RpcOptionError as error:
        raise RpcOptionError(f"{prefix}_CERTIFICATE_FILE", error.reason) from error


def _reachable(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host
    if not address.is_unspecified:
        return str(address)
    return "127.0.0.1" if address.version == 4 else "::1"


def _served_name(host: str, port: int, certificate: Path) -> str | None:
    """A name in the certificate that the service shows, if that is the one in the file; None if it shows none."""
    context = _trusting(certificate)
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, port), timeout=5) as plain, context.wrap_socket(plain) as wrapped:
            names = (wrapped.getpeercert() or {}).get("subjectAltName", ())
    except OSError:
        # Told by the check itself, in gRPC's words.
        return None
    # A wildcard is not a name; something below it is.
    return next((str(name[1]).replace("*.", "health.", 1) for name in names if isinstance(name, tuple)), None)


def _trusting(certificate: Path) -> ssl.SSLContext:
    """A client's context that takes this very certificate, by whichever name it goes, and what it signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(certificate)
    except (OSError, ssl.SSLError) as error:
        raise RpcOptionError("certificate_file", f"cannot read {certificate}: {error.strerror or error}") from error
    return context


_OF_AN_ENDPOINT: Final = ("tls", "ca_file", "certificate_file", "private_key_file", "token_file", "server_name")
_OF_GRPC: Final = ("service", "server_name", "token_file")


def _contradiction(arguments: argparse.Namespace) -> str | None:
    """Which flag would do nothing beside another one; None if all are used."""
    for flag, others in (("prefix", _OF_AN_ENDPOINT), ("http_path", _OF_GRPC)):
        found = next((one for one in others if getattr(arguments, flag) and getattr(arguments, one)), None)
        if found is not None:
            return f"--{found.replace('_', '-')} does not go with --{flag.replace('_', '-')}"
    if arguments.server_name and not (arguments.tls or arguments.ca_file or arguments.certificate_file):
        return "--server-name is of a certificate: turn TLS on, by --tls or --ca-file"
    return None


def main(argv: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Check once. Returns the exit code: 0 for a service that serves, 1 for one that does not, 2 for wrong settings."""
    environment = os.environ if environment is None else environment
    parser: argparse.ArgumentParser = Parser(
        prog="python -m penstock.rpc.health", description="Ask whether a service serves."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--endpoint", metavar="HOST:PORT", help="of the service")
    which.add_argument(
        "--prefix", help="of the service's own variables, such as PENSTOCK_READER; it is on this machine"
    )
    parser.add_argument(
        "--service",
        default="",
        help="full name of a gRPC service, with the token if the server wants one; default: the server as a whole",
    )
    parser.add_argument("--token-file", type=Path, help="file of the bearer token, for --service")
    parser.add_argument("--http-path", metavar="PATH", help="ask by HTTP instead, for a path that answers 200")
    parser.add_argument("--timeout-seconds", type=positive_seconds, default=5.0, help="default: 5")
    parser.add_argument("--ca-file", type=Path, help="PEM of the authority of the server's certificate: turns TLS on")
    parser.add_argument("--certificate-file", type=Path, help="PEM of a client's certificate, for mutual TLS")
    parser.add_argument("--private-key-file", type=Path, help="PEM of that certificate's key")
    parser.add_argument("--server-name", help="name in the server's certificate, if the endpoint has another name")
    parser.add_argument("--tls", action="store_true", help="use TLS with the authorities that gRPC trusts")
    arguments = parser.parse_args(argv)
    if (refusal := _contradiction(arguments)) is not None:
        parser.error(refusal)
    try:
        if arguments.prefix:
            endpoint, security, server_name = own_endpoint(arguments.prefix, environment)
        else:
            endpoint, server_name = arguments.endpoint, arguments.server_name
            check_address(endpoint)
            security = ClientSecurity(
                ca_file=arguments.ca_file,
                certificate_file=arguments.certificate_file,
                private_key_file=arguments.private_key_file,
                token_file=arguments.token_file,
                tls=arguments.tls,
            )
            security.check_endpoint(endpoint)
        security.check_files()
        wait = arguments.timeout_seconds
        if arguments.http_path:
            answer = check_http(endpoint, arguments.http_path, security, timeout_seconds=wait)
        else:
            answer = check_health(
                endpoint, security, service=arguments.service, timeout_seconds=wait, server_name=server_name
            )
    except RpcOptionError as error:
        is_flag = arguments.endpoint is not None and hasattr(arguments, error.option)
        name = f"--{error.option.replace('_', '-')}" if is_flag else error.option
        sys.stderr.write(f"health: {name}: {error.reason}\n")
        return 2
    sys.stdout.write(f"{endpoint} {answer.status}{f' ({answer.detail})' if answer.detail else ''}\n")
    return 0 if answer.is_serving else 1


if __name__ == "__main__":
    sys.exit(main())
