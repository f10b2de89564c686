"""What the tests of the services' security share: the services, raw calls, and how much memory a process has."""

from __future__ import annotations

import importlib
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import trustme
from google.protobuf.descriptor import MethodDescriptor

from penstock.proto.consumer_registry.v1 import consumer_registry_pb2
from penstock.proto.shard_reader.v1 import shard_reader_pb2
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2
from penstock.rpc.testing import ServiceProcess, service_process

DEADLINE = 120
"""Longer than any of this takes on a busy machine: no test shows how fast a service is."""
TOKEN = "a-token-of-these-tests-with-32-characters"
CONTRACTS = {
    "consumer-registry": (consumer_registry_pb2, "REGISTRY"),
    "shard-reader": (shard_reader_pb2, "READER"),
    "sink-gateway": (sink_gateway_pb2, "SINK"),
    "stage-scheduler": (stage_scheduler_pb2, "STAGES"),
}
# A method of each that needs nothing but the service, and leaves nothing behind.
QUICK = {
    "consumer-registry": "ListConsumers",
    "shard-reader": "ListSessions",
    "sink-gateway": "Stats",
    "stage-scheduler": "ListJobs",
}


@dataclass(frozen=True)
class Service:
    """A service that runs."""

    name: str
    process: ServiceProcess
    errors: Path
    """What it writes to its standard error."""

    @property
    def address(self) -> str:
        return self.process.address

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def methods(self) -> list[MethodDescriptor]:
        return methods_of(self.name)

    def quick(self) -> str:
        """The full name of a cheap method."""
        return next(path_of(method) for method in self.methods if method.name == QUICK[self.name])

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def methods_of(name: str) -> list[MethodDescriptor]:
    (service,) = CONTRACTS[name][0].DESCRIPTOR.services_by_name.values()
    return list(service.methods)


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def environment_of(name: str, folder: Path, **settings: str) -> dict[str, str]:
    """Credentials that are none, files in the folder, and the service's own settings."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    own = {f"PENSTOCK_{CONTRACTS[name][1]}_{key}": value for key, value in settings.items()}
    store = {"PENSTOCK_REGISTRY_STORE": f"sqlite:///{folder / 'registry.sqlite'}"}
    return {**os.environ, **keys, "HOME": str(folder), **store, **own}


@contextmanager
def running(name: str, folder: Path, **settings: str) -> Iterator[Service]:
    """The service, with settings as variables of its environment."""
    module = "penstock.services." + name.replace("-", "_")
    errors = folder / f"{name}.log"
    with (
        errors.open("wb") as log,
        service_process(module, ["serve"], environment_of(name, folder, **settings), log) as it,
    ):
        yield Service(name, it, errors)


@dataclass(frozen=True)
class Pki:
    """An authority, a server's and a client's certificate, and an untrusted authority."""

    folder: Path
    ours: trustme.CA = field(default_factory=trustme.CA)
    theirs: trustme.CA = field(default_factory=trustme.CA)

    def __post_init__(self) -> None:
        self.ours.cert_pem.write_to_path(self.folder / "ca.pem")
        for name, authority in (("server", self.ours), ("client", self.ours), ("stranger", self.theirs)):
            leaf = authority.issue_cert("127.0.0.1", "localhost")
            leaf.cert_chain_pems[0].write_to_path(self.folder / f"{name}.pem")
            leaf.private_key_pem.write_to_path(self.folder / f"{name}.key")

    def credentials(self, own: str | None) -> grpc.ChannelCredentials:
        """Return the credentials of a client that trusts our authority and presents this certificate, if any."""
        ca = (self.folder / "ca.pem").read_bytes()
        if own is None:
            return grpc.ssl_channel_credentials(ca)
        certificate = (self.folder / f"{own}.pem").read_bytes()
        return grpc.ssl_channel_credentials(ca, (self.folder / f"{own}.key").read_bytes(), certificate)

    def server_settings(self) -> dict[str, str]:
        return {
            "CERTIFICATE_FILE": str(self.folder / "server.pem"),
            "PRIVATE_KEY_FILE": str(self.folder / "server.key"),
            "CLIENT_CA_FILE": str(self.folder / "ca.pem"),
        }


@contextmanager
def raw_channel(address: str, credentials: grpc.ChannelCredentials | None = None) -> Iterator[grpc.Channel]:
    """A channel that sends any bytes, without limits, on a connection of its own."""
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]
    if credentials is None:
        channel = grpc.insecure_channel(address, options)
    else:
        channel = grpc.secure_channel(address, credentials, options)
    with channel:
        yield channel


def ask(
    channel: grpc.Channel,
    path: str,
    content: bytes = b"",
    *,
    token: str | None = TOKEN,
    timeout: float = DEADLINE,
    compression: grpc.Compression | None = None,
) -> tuple[grpc.StatusCode, str]:
    """Make a unary call with any bytes; its status and what was said of it."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    try:
        channel.unary_unary(path, None, None)(content, timeout=timeout, metadata=metadata, compression=compression)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def main_of(name: str) -> Callable[[Sequence[str]], int]:
    """The command of a service, as it is called in its own process."""
    main: Callable[[Sequence[str]], int]
    main = importlib.import_module(f"penstock.services.{name.replace('-', '_')}.__main__").main
    return main


def stream(
    channel: grpc.Channel, path: str, contents: list[bytes], *, token: str | None = TOKEN, timeout: float = DEADLINE
) -> tuple[grpc.StatusCode, str]:
    """The same for a call that streams both ways; all answers are read."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    call = channel.stream_stream(path, None, None)(iter(contents), timeout=timeout, metadata=metadata)
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def call_any(
    channel: grpc.Channel, method: MethodDescriptor, contents: list[bytes], **options: object
) -> tuple[grpc.StatusCode, str]:
    """Call a method as its kind wants it: with one message, or with several."""
    make: Callable[..., tuple[grpc.StatusCode, str]] = stream
    return make(channel, path_of(method), contents if method.client_streaming else contents[:1], **options)


# HTTP/2 by hand, for what no library sends.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", number) + payload


def settings_frame() -> bytes:
    return frame(4, 0, 0, b"")


def headers_frame(number: int, path: str, token: str | None = TOKEN) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "127.0.0.1",
        "content-type": "application/grpc",
        "te": "trailers",
        **({} if token is None else {"authorization": f"Bearer {token}"}),
    }
    # Literals without indexing: a length and the text, twice.
    block = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    return frame(1, 4, number, block)


def connect(service: Service) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), timeout=DEADLINE)
