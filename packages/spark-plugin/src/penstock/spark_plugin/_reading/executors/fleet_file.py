"""The readers of a session, in a file that the driver writes and the source processes of its queries read.

Spark gives the process of a source none of the session's objects, except the folder of its files. That folder belongs
to the driver, on the same machine, and is removed with the session. Only its user can read the file, which holds the
readers' token.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.rpc import ClientSecurity, open_regular
from penstock.spark_plugin._signals import spark_files_folder
from penstock.spark_plugin.errors import ExecutorReadersError

_FOLDER, _NAME = "penstock-readers", "fleet.json"


@dataclass(frozen=True, slots=True)
class ExecutorReader:
    """A reader that is there."""

    number: int
    """From zero, below the count that was asked for. One that is started again keeps it, at another address."""
    address: str
    """`host:port` of its gRPC service."""
    socket: str | None
    """Path of its Unix socket, for tasks of its machine; None without one."""
    host: str
    """Host of its executor, as Spark knows it."""
    pid: int
    """Process id of its Python worker, on that machine."""


class FleetFile:
    """Where the driver writes who is there.

    Args:
        files: the folder of the session's files, as the driver knows it.
        security: how readers are called.

    Raises:
        FileExistsError: readers run in this session already.
    """

    def __init__(self, files: Path, security: ClientSecurity) -> None:
        self.folder = files / _FOLDER
        self._security = security
        self.folder.mkdir(mode=0o700)
        self.write(())

    def write(self, readers: Sequence[ExecutorReader]) -> None:
        """Name the readers that are there now."""
        authority = self._security.ca_certificates
        content = {
            "token": self._security.token,
            "ca_certificates": None if authority is None else authority.decode(),
            "server_name": self._security.server_name,
            "readers": [asdict(reader) for reader in readers],
        }
        new = self.folder / f"{_NAME}.new"
        with open(open_regular(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=0o600), "w") as file:
            json.dump(content, file)
        new.replace(self.folder / _NAME)

    def remove(self) -> None:
        """Say that there will be none any more. Can be called again."""
        shutil.rmtree(self.folder, ignore_errors=True)


class ExecutorFleet:
    """The readers of the session, as the process of a query's source finds them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp: tuple[int, int] | None = None
        self._readers: tuple[ExecutorReader, ...] = ()
        content = self._look()
        authority = content["ca_certificates"]
        self.security = ClientSecurity(
            token=content["token"],
            ca_certificates=None if authority is None else authority.encode(),
            server_name=content["server_name"],
            # Where readers listen without TLS, start_readers was asked to, or they all run on this machine.
            allow_plain_text_token=authority is None,
        )

    @classmethod
    def find(cls, files: Path | None = None) -> "ExecutorFleet | None":
        """The fleet of the session that this process works for; None without one.

        Args:
            files: the folder of the session's files. Default: as Spark said when it started this process.
        """
        files = files or spark_files_folder()
        if files is None:
            return None
        try:
            return cls(files / _FOLDER / _NAME)
        except FileNotFoundError:
            return None

    def addresses(self) -> list[str]:
        """The addresses of the readers that run now.

        Raises:
            ExecutorReadersError: there will be none any more.
        """
        try:
            self._look()
        except FileNotFoundError as error:
            raise ExecutorReadersError.of("READERS_STOPPED") from error
        return [reader.address for reader in self._readers]

    def sockets(self) -> dict[str, Path]:
        """The Unix sockets of the readers that were there last, by address."""
        return {reader.address: Path(reader.socket) for reader in self._readers if reader.socket is not None}

    def _look(self) -> dict[str, str | None]:
        with self._file.open() as file:
            found = os.fstat(file.fileno())
            if self._stamp == (found.st_mtime_ns, found.st_ino):
                return {}
            content = json.load(file)
        self._stamp = found.st_mtime_ns, found.st_ino
        self._readers = tuple(ExecutorReader(**reader) for reader in content.pop("readers"))
        return dict(content)
