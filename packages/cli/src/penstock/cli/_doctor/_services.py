"""Are Penstock's services there, and do they let this client in?"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.cli._doctor._surroundings import Finding, Service, Surroundings, ok, problem, skipped

if TYPE_CHECKING:
    from penstock.rpc import ClientSecurity

_INSTALL: Final = 'pip install "penstock-cli[services]"'
_HEALTH: Final = "/grpc.health.v1.Health/Check"
_SERVING: Final = b"\x08\x01"
"""The health check's answer on the wire: the field `status` is SERVING."""


@dataclass(frozen=True, slots=True)
class Contract:
    """How a service is known."""

    command: str
    method: str
    """A call that changes nothing, asked with an empty message."""


CONTRACTS: Final[Mapping[str, Contract]] = {
    "registry": Contract(
        "penstock registry", "/penstock.proto.consumer_registry.v1.ConsumerRegistryService/ListConsumers"
    ),
    "reader": Contract("penstock reader", "/penstock.proto.shard_reader.v1.ShardReaderService/Stats"),
    "sink": Contract("penstock sink", "/penstock.proto.sink_gateway.v1.SinkGatewayService/Stats"),
    "stages": Contract("penstock stages", "/penstock.proto.stage_scheduler.v1.StageSchedulerService/ListJobs"),
}


def check_services(surroundings: Surroundings) -> Iterator[Finding]:
    """Each that is named by a flag or by `PENSTOCK_<NAME>_ENDPOINT`."""
    if not surroundings.services:
        text = "none is named: all runs in the job's own processes"
        yield skipped("Services", text, "give --registry HOST:PORT, or set PENSTOCK_REGISTRY_ENDPOINT")
    for service in surroundings.services:
        yield _check(service, surroundings)


def _check(service: Service, surroundings: Surroundings) -> Finding:
    try:
        return _connect(service, surroundings) or _ask(service, surroundings)
    except ImportError as error:
        return skipped(service.name, f"{service.endpoint} listens; no more is known: {error}", _INSTALL)


def _connect(service: Service, surroundings: Surroundings) -> Finding | None:
    """What keeps a connection from being made; None when nothing does."""
    host, _, port = service.endpoint.rpartition(":")
    is_socket = service.endpoint.startswith("unix:")
    if "@" in service.endpoint and not is_socket:
        return problem(service.name, "the endpoint has user information", "give host:port, without user and password")
    if not is_socket and (not host or not port.isdecimal() or not 0 < int(port) < 65_536):
        return problem(service.name, f"{service.endpoint!r} is not host:port", "give it as in 127.0.0.1:50051")
    try:
        _open(service, surroundings).close()
    except (socket.gaierror, UnicodeError):
        # UnicodeError is Python's for a host that cannot be one.
        return problem(service.name, f"{service.endpoint}: no such host", "correct the name; check DNS")
    except (ConnectionRefusedError, FileNotFoundError):
        where = f"--socket-path {_path_of(service.endpoint)}" if is_socket else f"--port {port}"
        cure = f"start it ({CONTRACTS[service.name].command} serve {where}), or correct the address"
        return problem(service.name, f"{service.endpoint}: nobody listens there", cure)
    except TimeoutError:
        return problem(service.name, f"{service.endpoint}: no answer in time", "check firewall, routes and the address")
    except OSError as error:
        return problem(service.name, f"{service.endpoint}: {error.strerror or error}", "correct the address")
    return None


def _open(service: Service, surroundings: Surroundings) -> socket.socket:
    if not service.endpoint.startswith("unix:"):
        host, _, port = service.endpoint.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), surroundings.timeout_seconds)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.settimeout(surroundings.timeout_seconds)
        opened.connect(_path_of(service.endpoint))
    except BaseException:
        opened.close()
        raise
    return opened


def _path_of(endpoint: str) -> str:
    return endpoint.removeprefix("unix:").removeprefix("//")


def _host_of(endpoint: str) -> str:
    # A certificate is for a host. The host of a socket is this one.
    return "localhost" if endpoint.startswith("unix:") else endpoint.rpartition(":")[0].strip("[]")


def _ask(service: Service, surroundings: Surroundings) -> Finding:
    from penstock.rpc import RpcOptionError

    prefix = f"PENSTOCK_{service.name.upper()}"
    try:
        security = _security(prefix, service, surroundings.environ)
        if security.uses_tls and (finding := _handshake(service, security, surroundings)) is not None:
            return finding
        return _call(service, security, surroundings)
    except RpcOptionError as error:
        return problem(service.name, f"{service.endpoint}: {error}", f"correct the variables {prefix}_…")


def _security(prefix: str, service: Service, environ: Mapping[str, str]) -> ClientSecurity:
    from penstock.rpc import ClientSecurity, read_switch

    def file(name: str) -> Path | None:
        return Path(path) if (path := environ.get(f"{prefix}_{name}")) else None

    token_file = file("TOKEN_FILE")
    return ClientSecurity(
        ca_file=file("CA_FILE"),
        certificate_file=file("CERTIFICATE_FILE"),
        private_key_file=file("PRIVATE_KEY_FILE"),
        token=None if token_file else environ.get(f"{prefix}_TOKEN") or None,
        token_file=token_file,
        tls=service.tls or read_switch("tls", environ.get(f"{prefix}_TLS", "")),
    )


def _handshake(service: Service, security: ClientSecurity, surroundings: Surroundings) -> Finding | None:
    """What is wrong with TLS, which gRPC tells in one word; None when nothing is."""
    host = _host_of(service.endpoint)
    prefix = f"PENSTOCK_{service.name.upper()}"
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
        if security.certificate_file is not None:
            context.load_cert_chain(security.certificate_file, security.private_key_file)
        context.set_alpn_protocols(["h2"])
        with (
            _open(service, surroundings) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        cure = f"set {prefix}_CA_FILE to the PEM of the authority that signed it; its name has to be {host}"
        return problem(
            service.name, f"{service.endpoint}: its certificate is not trusted: {error.verify_message}", cure
        )
    except ssl.SSLError as error:
        cure = f"unset {prefix}_CA_FILE and {prefix}_TLS and leave --tls out, or start the service with a certificate"
        return problem(service.name, f"{service.endpoint} does not speak TLS: {error.reason}", cure)
    except (ConnectionResetError, TimeoutError):
        cure = f"unset {prefix}_CA_FILE and {prefix}_TLS and leave --tls out, or start the service with a certificate"
        return problem(service.name, f"{service.endpoint} does not speak TLS", cure)
    except OSError as error:
        return problem(service.name, f"{service.endpoint}: {error}", f"correct the variables {prefix}_…")


def _call(service: Service, security: ClientSecurity, surroundings: Surroundings) -> Finding:
    import grpc

    from penstock.rpc import open_channel

    prefix = f"PENSTOCK_{service.name.upper()}"
    timeout = surroundings.timeout_seconds
    channel = open_channel(service.endpoint, security)
    try:
        try:
            health = _unary(channel, _HEALTH)(b"", timeout=timeout)
        except grpc.RpcError as error:
            return _no_health(service, security, surroundings, error)
        if health != _SERVING:
            text = f"{service.endpoint} is there, but does not serve: it starts, or drains"
            return problem(service.name, text, "wait, and look into its log")
        try:
            _unary(channel, CONTRACTS[service.name].method)(b"", timeout=timeout)
        except grpc.RpcError as error:
            code = error.code()
            if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                has = security.token is not None or security.token_file is not None
                text = f"{service.endpoint}: the token is {'wrong or expired' if has else 'missing'}"
                return problem(service.name, text, f"set {prefix}_TOKEN_FILE (or {prefix}_TOKEN) to the service's")
            if code is grpc.StatusCode.UNIMPLEMENTED:
                text = f"{service.endpoint} is another service than `{CONTRACTS[service.name].command} serve`"
                return problem(service.name, text, "correct the port")
            # Any other answer comes from behind the door: an empty message asks for nothing.
    finally:
        channel.close()
    kept = "TLS" if security.uses_tls else "plain text"
    return ok(service.name, f"{service.endpoint} serves, {kept}")


def _no_health(service: Service, security: ClientSecurity, surroundings: Surroundings, error: Any) -> Finding:
    prefix = f"PENSTOCK_{service.name.upper()}"
    if security.uses_tls:
        cure = f"give {prefix}_CERTIFICATE_FILE and _PRIVATE_KEY_FILE, signed by the authority that it takes"
        return problem(service.name, f"{service.endpoint} ends the connection after the handshake: mutual TLS?", cure)
    if _speaks_tls(service, surroundings):
        cure = f"set {prefix}_CA_FILE to the PEM of its authority, or give --tls"
        return problem(service.name, f"{service.endpoint} speaks TLS, and this client plain text", cure)
    text = f"{service.endpoint} listens, but is not a service of Penstock: {error.code().name}"
    return problem(service.name, text, "correct the port")


def _speaks_tls(service: Service, surroundings: Surroundings) -> bool:
    # Only to see what it speaks: nothing is sent over it.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with _open(service, surroundings) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False


def _unary(channel: Any, method: str) -> Any:
    return channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
