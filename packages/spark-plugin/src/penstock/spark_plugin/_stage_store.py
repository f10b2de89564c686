"""The store of a pipeline: committed results of stages, checkpoints of live ones, and a lock.

```
<store>/lock                                  held by the driver that runs
<store>/stages/<stage>/<fingerprint>/         result of a bounded stage
    <vertex>/*.parquet
    _COMMITTED.json                           renamed into place when all data is written
<store>/stages/.pins/<store>.json             what the last run on a store uses
<store>/stages/.locks/<stage>.<fingerprint>   held while that is computed
<store>/live/<sink>/checkpoint                of a live stage's query
<store>/seams/<name>.json                     where a back-fill ends and its stream goes on
```

`stages` may lie elsewhere, and be shared by the stores of several pipelines.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.spark_plugin._file_lock import FileLock
from penstock.spark_plugin._run_pins import RunPins
from penstock.spark_plugin.errors import StoreInUseError

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
        """Remove what an interrupted run left. The marker goes first: half a result is none."""
        (self.path / _MARKER).unlink(missing_ok=True)
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

    def __init__(self, path: str | Path, *, stages: str | Path | None = None) -> None:
        self.path = Path(path).absolute()
        self.stages = Path(stages).absolute() if stages is not None else self.path / "stages"
        self._lock = FileLock(self.path / "lock")
        name = hashlib.sha256(str(self.path).encode()).hexdigest()[:16]
        self._pins = self.stages / ".pins" / f"{name}.json"

    def __enter__(self) -> Self:
        if not self._lock.acquire():
            raise StoreInUseError(str(self.path), self._lock.holder())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let another driver have the store."""
        self._lock.release()

    def stage(self, name: str, fingerprint: str) -> StageFolder:
        """The folder of a stage's result with a fingerprint."""
        return StageFolder(self.stages / _safe(name) / fingerprint)

    @contextlib.contextmanager
    def computing(self, name: str, fingerprint: str) -> Iterator[None]:
        """Hold the right to compute a stage's result; waits for another driver that computes the same one."""
        lock = FileLock(self._computing(name, fingerprint))
        lock.acquire(wait=True)
        try:
            yield
        finally:
            lock.path.unlink(missing_ok=True)
            lock.release()

    def pins(self) -> RunPins | None:
        """What the last run on this store uses."""
        return RunPins.read(self._pins)

    def pin(self, pins: RunPins) -> None:
        """Declare what the present run uses."""
        # Most runs go on with what is pinned; a file takes some 10 ms to reach the disk.
        if pins != self.pins():
            pins.write(self._pins)

    def checkpoint(self, sink: str) -> Path:
        """The checkpoint of a live stage's query."""
        return self.path / "live" / _safe(sink) / "checkpoint"

    def forget(self) -> None:
        """Remove the checkpoints, seams, and all results but those that another store pins."""
        for folder in ("live", "seams"):
            shutil.rmtree(self.path / folder, ignore_errors=True)
        self._pins.unlink(missing_ok=True)
        self.clean_up()

    def clean_up(self) -> int:
        """Remove the results that no run pins and nobody computes; how many bytes that were.

        What the present run uses must be pinned before.
        """
        pinned = {
            (_safe(name), pin.fingerprint)
            for file in self._pins.parent.glob("*.json")
            if (pins := RunPins.read(file)) is not None
            for name, pin in pins.stages.items()
        }
        freed = 0
        for folder in self.stages.glob("[!.]*/*"):
            if (folder.parent.name, folder.name) not in pinned:
                lock = FileLock(self._computing(folder.parent.name, folder.name))
                if lock.acquire():
                    freed += sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
                    StageFolder(folder).wipe()
                    lock.path.unlink(missing_ok=True)
                    lock.release()
        return freed

    def _computing(self, name: str, fingerprint: str) -> Path:
        return self.stages / ".locks" / f"{_safe(name)}.{fingerprint}"


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name)
