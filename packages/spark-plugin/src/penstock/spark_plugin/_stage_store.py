"""The store of a pipeline: committed results of stages, checkpoints of live ones, and a lock.

```
<store>/lock                                  held by the driver that runs
<store>/stages/<stage>/<fingerprint>/         result of a bounded stage
    <vertex>/*.parquet
    _COMMITTED.json                           renamed into place when all data is written
<store>/live/<sink>/checkpoint                of a live stage's query
```
"""

import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from penstock.spark_plugin.errors import StoreInUseError

try:
    import fcntl
except ImportError:  # pragma: no cover - no file locks here
    fcntl = None  # type: ignore[assignment]  # a platform without it

_MARKER = "_COMMITTED.json"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]")


@dataclass(frozen=True, slots=True)
class CommittedStage:
    """The result of a bounded stage."""

    stage: str
    fingerprint: str
    rows: int
    size_bytes: int
    seconds: float
    """Of the run that made it."""
    outputs: Mapping[str, str]
    """Folder of Parquet files by vertex, relative to the stage's own."""


class StageFolder:
    """Where one stage with one fingerprint leaves its result."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def output(self, vertex: str) -> Path:
        """The folder of a vertex's Parquet files."""
        return self.path / _safe(vertex)

    def committed(self) -> CommittedStage | None:
        """The result, if it was committed."""
        try:
            return CommittedStage(**json.loads((self.path / _MARKER).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def wipe(self) -> None:
        """Remove what an interrupted run left."""
        shutil.rmtree(self.path, ignore_errors=True)

    def commit(self, stage: CommittedStage) -> None:
        """Declare the data complete. The marker appears at once and whole, or not at all."""
        temporary = self.path / f"{_MARKER}.{os.getpid()}"
        with temporary.open("w") as file:
            json.dump(asdict(stage), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / _MARKER)


class StageStore:
    """The store of one pipeline, locked while this is entered. The lock ends with the process, however that ends."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        file = (self.path / "lock").open("a+")
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                holder = file.read().strip() or "another driver"
                file.close()
                raise StoreInUseError(str(self.path), holder) from None
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}")
        file.flush()
        self._lock = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let another driver have the store."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def stage(self, name: str, fingerprint: str) -> StageFolder:
        """The folder of a stage's result with a fingerprint."""
        return StageFolder(self.path / "stages" / _safe(name) / fingerprint)

    def checkpoint(self, sink: str) -> Path:
        """The checkpoint of a live stage's query."""
        return self.path / "live" / _safe(sink) / "checkpoint"

    def forget(self) -> None:
        """Remove all results and checkpoints."""
        for folder in ("stages", "live"):
            shutil.rmtree(self.path / folder, ignore_errors=True)


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name)
