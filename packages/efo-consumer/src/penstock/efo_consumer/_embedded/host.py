"""A shard reader and its gRPC server in one process, beside code that knows no event loop."""

from __future__ import annotations

import dataclasses
import secrets
import shutil
import socket
import tempfile
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from penstock.aws import AwsLocation, AwsOptions, AwsSession
from penstock.efo_consumer._buffer.owned_folder import MEMORY, SOCKET, new_folder, remove_leftovers
from penstock.efo_consumer._embedded.session import BlockingSession
from penstock.efo_consumer._reader.backend import KinesisBackend, ReaderBackend
from penstock.efo_consumer._reader.config import ReaderConfig
from penstock.efo_consumer._reader.local import LocalShardReader
from penstock.efo_consumer._remote.servicer import SERVICE_NAME, ReaderLocation, ShardReaderServicer
from penstock.efo_consumer._remote.shared_blocks import BlockPool
from penstock.rpc import (
    MAX_SOCKET_PATH_BYTES,
    ClientSecurity,
    GrpcServer,
    LoopThread,
    LoopThreadForkedError,
    ServerSecurity,
    ServerSettings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType


_START_SECONDS = 30.0
_DRAIN_SECONDS = 1.0


class ReaderHost:
    """Hosts a reader for one application: its driver calls `reader`, its tasks `read_ranges(host.address,
    host.security, …)`.

    Only the holder of the token may call the server. The view token only lists its sessions. The constructor is
    cheap, and `start` does the work. A context manager.

    Args:
        config: bounds, times, and how shards are followed.
        aws: credentials, region and endpoint.
        host: address to listen on; one that the executors can reach.
        port: port to listen on; 0 lets the system pick one.
        token: what callers must send; a random one when left out.
        advertised_host: the name under which others reach `host`; needed when that is a wildcard such as 0.0.0.0.
        certificate_file: PEM of a certificate: turns TLS on. Default: plain text, as executors have no certificates.
        private_key_file: PEM of its key.
        serves_others: whether others than this application's driver open sessions, who may mean other streams: where
            theirs are is compared with where the reader's are.
        backend: instead of Kinesis, for tests; made on the host's own loop.

    Raises:
        AwsOptionError: `aws` is not an `AwsOptions`.
    """

    def __init__(
        self,
        *,
        config: ReaderConfig | None = None,
        aws: AwsOptions | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        advertised_host: str | None = None,
        certificate_file: Path | None = None,
        private_key_file: Path | None = None,
        serves_others: bool = False,
        backend: Callable[[], ReaderBackend] | None = None,
    ) -> None:
        self._config = config or ReaderConfig()
        self._aws = AwsOptions.of(aws)
        self._serves_others = serves_others
        self.token = token or secrets.token_urlsafe(32)
        """What callers must send. Keep it within the application."""
        self.view_token = secrets.token_urlsafe(32)
        """Token for monitoring: it lists the sessions and their numbers, and can open or read nothing."""
        # The token lives as long as the query, and is good for its reader alone.
        security = ServerSecurity(
            certificate_file=certificate_file,
            private_key_file=private_key_file,
            token=self.token,
            limited_token=self.view_token,
            limited_to=frozenset({f"/{SERVICE_NAME}/ListSessions"}),
            allow_plain_text=True,
        )
        self._settings = ServerSettings(host=host, port=port, security=security, drain_seconds=_DRAIN_SECONDS)
        self._advertised_host = advertised_host
        self._make_backend = backend or self._kinesis
        self._location: ReaderLocation | None = None
        self._thread: LoopThread | None = None
        self._exits = AsyncExitStack()
        self.address = ""
        """`host:port`, for tasks; known after `start`."""
        self.socket_path: Path | None = None
        """Unix socket of the same server, for this user's tasks on this machine; known after `start`.

        None without Unix sockets, or if the folder of temporary files has too long a name.
        """
        self._session: BlockingSession | None = None

    def start(self) -> Self:
        """Start the loop's thread, the reader and its server. A second call does nothing.

        Raises:
            AwsOptionError: no region or no credentials are to be found.
            ServerStartError: the address cannot be listened on.
        """
        if self._thread is not None:
            return self
        thread = LoopThread("penstock reader host")
        try:
            reader, self.address = thread.call(self._serve(), _START_SECONDS)
        except BaseException:
            thread.close()
            raise
        self._thread = thread
        self._session = BlockingSession(thread, reader)
        return self

    @property
    def security(self) -> ClientSecurity:
        """What tasks use to call the server: the token, which lives as long as this host."""
        return ClientSecurity(token=self.token, allow_plain_text_token=True)

    @property
    def reader(self) -> BlockingSession:
        """The reader; known after `start`.

        Raises:
            RuntimeError: the host is not started.
        """
        if self._session is None:
            raise RuntimeError("start the reader host first")
        return self._session

    def close(self) -> None:
        """End the sessions, the server and the thread. Can be called again, and before `start`.

        In a forked child it does nothing: they are the parent's.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                with suppress(LoopThreadForkedError):
                    thread.call(self._exits.aclose(), _START_SECONDS)
            finally:
                thread.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _kinesis(self) -> ReaderBackend:
        session = AwsSession(self._aws)
        backend = KinesisBackend(session, self._config.publisher)
        if self._serves_others:
            self._location = ReaderLocation(AwsLocation.of(session), backend.stream_arn)
        return backend

    async def _serve(self) -> tuple[LocalShardReader, str]:
        async with AsyncExitStack() as exits:
            reader = await exits.enter_async_context(LocalShardReader(self._make_backend(), self._config))
            self.socket_path, blocks = exits.enter_context(_private_folder())
            settings = dataclasses.replace(self._settings, socket_path=self.socket_path)
            register = [ShardReaderServicer(reader, blocks, location=self._location).add_to]
            server = GrpcServer(settings, register=register, service_names=[SERVICE_NAME])
            await exits.enter_async_context(server)
            exits.callback(reader.drain)
            self._exits = exits.pop_all()
        address = server.address
        if self._advertised_host is not None:
            name = self._advertised_host
            is_bare = ":" in name and not name.startswith("[")
            address = f"[{name}]:{server.port}" if is_bare else f"{name}:{server.port}"
        return reader, address


@contextmanager
def _private_folder() -> Iterator[tuple[Path | None, BlockPool | None]]:
    """The socket's path in a new folder of this user only, and that folder for blocks, if it is in memory.

    Folders that killed processes left are removed.
    """
    if not hasattr(socket, "AF_UNIX"):
        yield None, None
        return
    with ExitStack() as exits:
        temporary = Path(tempfile.gettempdir())
        remove_leftovers((MEMORY, temporary))
        for parent, in_memory in ((MEMORY, True), (temporary, False)):
            try:
                folder, lock = new_folder(parent)
            except OSError:  # no such folder on this system, or it is not writable
                if not in_memory:
                    raise
                continue
            exits.enter_context(lock)
            exits.callback(shutil.rmtree, folder, ignore_errors=True)
            path = folder / SOCKET
            fits = len(bytes(path)) <= MAX_SOCKET_PATH_BYTES
            yield (path, BlockPool(folder) if in_memory else None) if fits else (None, None)
            return
