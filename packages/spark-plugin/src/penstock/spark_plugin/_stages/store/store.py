"""The store of a pipeline: committed results of stages, checkpoints of live ones, and a lock.

```
<store>/lock                                  held by the driver that runs
<store>/stages/<stage>/<fingerprint>/         result of a bounded stage
    _STARTED.json                             whose result it is to be
    <vertex>/*.parquet
    _COMMITTED.json                           renamed into place when all data is written
<store>/stages/.pins/<id of the store>.json   what the last run on a store uses
<store>/stages/.locks/<stage>.<fingerprint>   held while that is computed
<store>/live/<sink>/checkpoint                of a live stage's query
<store>/live/<sink>/adopted.json              where it is instead, if the user has said that
<store>/seams/<name>.json                     where a back-fill ends and its stream goes on
```

`stages` may lie elsewhere, and be shared by the stores of several pipelines, and with what is not theirs: nothing is
removed but folders with one of the markers in them, files that this module names, and checkpoints of Spark.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession

from penstock.spark_plugin._stages.store.committed import damage, measure, read_committed
from penstock.spark_plugin._stages.store.file_lock import FileLock
from penstock.spark_plugin._stages.store.names import (
    as_url,
    folder_id,
    is_copy,
    is_fingerprint,
    open_own,
    safe_name,
    within,
)
from penstock.spark_plugin._stages.store.pins import RunPins
from penstock.spark_plugin._stages.store.removal import HIDDEN, Removal
from penstock.spark_plugin.errors import StoreInUseError, StoreLostError, StoreUnusableError

_MARKER = "_COMMITTED.json"
_STARTED = "_STARTED.json"
_TEMPORARY = re.compile(rf"({re.escape(_MARKER)}|{re.escape(_STARTED)})\.[0-9]+")
_ADOPTED = "adopted.json"
_FORGOTTEN = ".forgotten-"
_SECONDS_BETWEEN_LOOKS = 0.1


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
    beside: str = ""
    """What it was computed with that is in no fingerprint, in words; empty if nothing was."""

    @classmethod
    def of_document(cls, document: Any) -> Self:
        """Of what a marker says, whatever else a later version has added to it.

        Raises:
            TypeError: the document is not one of a result.
        """
        return cls(**{one.name: document[one.name] for one in fields(cls) if one.name in document})

    def document(self) -> dict[str, object]:
        """For a marker. Earlier versions take one with a key that they do not know for none, and remove the result."""
        document = asdict(self)
        if not self.beside:
            del document["beside"]
        return document


class StageFolder:
    """Where one stage with one fingerprint leaves its result."""

    shows_size = True

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def location(self) -> str:
        """Its path."""
        return str(self.path)

    def output(self, vertex: str) -> Path:
        """The folder of a vertex's Parquet files."""
        return self.path / safe_name(vertex)

    def committed(self) -> CommittedStage | None:
        """The result, if it was committed."""
        try:
            return CommittedStage.of_document(json.loads((self.path / _MARKER).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def age_seconds(self, now: float) -> float:
        """Since the result was committed, at `now` as seconds since the epoch; 0 if it is not."""
        try:
            return max(0.0, now - (self.path / _MARKER).stat().st_mtime)
        except OSError:
            return 0.0

    def begin(self, stage: str) -> None:
        """Make the folder anew, without what an interrupted run left, for a stage that is computed from now on.

        Raises:
            StoreUnusableError: the folder holds files that are not ours.
        """
        self.wipe()
        try:
            self.path.mkdir(parents=True)
        except FileExistsError as error:
            reason = "it holds files that no run left there; move it away, and run again"
            raise StoreUnusableError(str(self.path), reason) from error
        self._put(_STARTED, {"stage": stage, "fingerprint": self.path.name})

    def wipe(self) -> int:
        """Remove the result, or what an interrupted run left of it; how many bytes that were.

        Not the folder of somebody else, nor anything that a link leads to. The marker goes first: half a result is
        none.
        """
        with Removal(self.path) as found:
            if any(self._is_ours(found.read(name)) for name in (_MARKER, _STARTED)) or all(
                # A driver was killed before it had said whose the folder is.
                _TEMPORARY.fullmatch(name) or (name == _STARTED and found.read(name) == b"")
                for name in found.names()
            ):
                return found.remove(_MARKER)
            return 0

    def _is_ours(self, marker: bytes | None) -> bool:
        try:
            document = json.loads(marker or b"")
            return (safe_name(document["stage"]), document["fingerprint"]) == _name(self.path)
        except (ValueError, TypeError, KeyError, AttributeError):
            return False

    def write(self, vertex: str, frame: DataFrame) -> None:
        """Write the rows of a vertex, by Spark."""
        frame.write.parquet(as_url(self.output(vertex)))

    def output_name(self, vertex: str) -> str:
        """Of the folder of a vertex."""
        return self.output(vertex).name

    def measure(self, vertices: Sequence[str]) -> tuple[int, int]:
        """Rows and bytes that were written."""
        return measure([self.output(vertex) for vertex in vertices])

    def read(self, spark: SparkSession, vertex: str) -> DataFrame:
        """The committed rows of a vertex."""
        return read_committed(spark, self.output(vertex))

    def damage(self, result: CommittedStage) -> str:
        """See `committed.damage`."""
        return damage(result.outputs, self.output, (result.size_bytes, result.rows))

    def commit(self, stage: CommittedStage) -> CommittedStage:
        """Declare the data complete. The marker appears at once and whole, or not at all."""
        self._put(_MARKER, stage.document())
        return stage

    def _put(self, name: str, document: Mapping[str, object]) -> None:
        temporary = self.path / f"{name}.{os.getpid()}"
        with open_own(temporary) as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / name)


class StageStore:
    """The store of one pipeline, locked while this is entered. The lock ends with the process, however that ends."""

    def __init__(self, path: str | Path, *, stages: str | Path | None = None) -> None:
        self.path = Path(path).absolute()
        self.stages = Path(stages).absolute() if stages is not None else self.path / "stages"
        self._lock = FileLock(self.path / "lock")
        self._pinning = self.stages / ".pins"

    def __enter__(self) -> Self:
        if not self._lock.acquire():
            raise StoreInUseError(str(self.path), self._lock.holder())
        try:
            self._part_from_original()
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    def release(self) -> None:
        """Let another driver have the store."""
        self._lock.release()

    def when_lost(self, call: Callable[[StoreLostError], None]) -> None:
        """Never: the operating system holds the lock for as long as the process lives."""

    def identity(self) -> str:
        """What the store is known by to all drivers, wherever each has mounted it."""
        return folder_id(self.path)

    def results_identity(self) -> str:
        """What its results are known by."""
        return folder_id(self.stages)

    def stage(self, name: str, fingerprint: str) -> StageFolder:
        """The folder of a stage's result with a fingerprint.

        Raises:
            StoreUnusableError: the fingerprint is not one of a stage, or the folder lies outside of the store.
        """
        if not is_fingerprint(fingerprint):
            raise StoreUnusableError(str(self.stages), f"{fingerprint!r} is not a fingerprint of a stage")
        return StageFolder(within(self.stages, self.stages / safe_name(name) / fingerprint))

    @contextlib.contextmanager
    def computing(self, name: str, fingerprint: str, *, stopped: threading.Event | None = None) -> Iterator[None]:
        """Hold the right to compute a stage's result; waits for another driver that computes the same one.

        Raises:
            RuntimeError: `stopped` was set meanwhile.
        """
        lock = FileLock(self._computing(safe_name(name), fingerprint))
        stopped = stopped or threading.Event()
        while not lock.acquire():
            # Nobody could end a wait in the operating system, and the other driver may need hours.
            if stopped.wait(_SECONDS_BETWEEN_LOOKS):
                raise RuntimeError("the run has ended")
        try:
            yield
        finally:
            lock.path.unlink(missing_ok=True)
            lock.release()

    def pins(self) -> RunPins | None:
        """What the last run on this store uses."""
        former = None if self._pins.exists() else self._former_pins()
        return RunPins.read(former or self._pins)

    def pin(self, pins: RunPins) -> None:
        """Declare what the present run uses."""
        # Most runs go on with what is pinned; a file takes some 10 ms to reach the disk.
        if pins != RunPins.read(self._pins):
            pins.write(self._pins)
            self._drop_former_pins()

    @functools.cached_property
    def _pins(self) -> Path:
        # Not by its path: on another host that may be another store, and this one be mounted elsewhere.
        return self._pinning / f"{safe_name(self.identity())}.json"

    def _part_from_original(self) -> None:
        """Make a copy of a store known by another id than the original: else one would remove what the other pins.

        It goes on with the snapshot that was copied, as do its checkpoints.
        """
        found = RunPins.read(self._pins)
        if found is None or self.stages.is_relative_to(self.path) or not is_copy(self.path, found.store):
            return
        new_id = secrets.token_hex(16)
        # Before it is known by that: a driver that is killed between the two does the same again.
        replace(found, store=self.name).write(self._pinning / f"{new_id}.json")
        temporary = self.path / f".id.{os.getpid()}.{secrets.token_hex(4)}"
        temporary.write_text(new_id)
        temporary.replace(self.path / ".id")
        del self._pins

    def _former_pins(self) -> Path | None:
        """A file that is named after the store's path, as all were once, and says that it is of that."""
        file = self._pinning / f"{hashlib.sha256(self.name.encode()).hexdigest()[:16]}.json"
        found = RunPins.read(file)
        return file if found is not None and found.store == self.name else None

    def _drop_former_pins(self) -> None:
        if (former := self._former_pins()) is not None:
            former.unlink(missing_ok=True)

    def checkpoint(self, sink: str) -> Path:
        """The checkpoint of a live stage's query.

        Raises:
            StoreUnusableError: the path lies outside of the store.
        """
        return within(self.path, self.path / "live" / safe_name(sink) / "checkpoint")

    def checkpoint_url(self, sink: str) -> str:
        """The same as a URL."""
        return as_url(self.checkpoint(sink).absolute())

    def has_begun(self, sink: str) -> bool:
        """Whether a query has logged offsets in its checkpoint in the store."""
        offsets = self.checkpoint(sink) / "offsets"
        return offsets.is_dir() and any(not file.name.startswith(".") for file in offsets.iterdir())

    def adopted(self, sink: str) -> str | None:
        """The location outside of the store that a query has its checkpoint in; None if it has none there."""
        try:
            found = json.loads((self.checkpoint(sink).parent / _ADOPTED).read_text())["checkpointLocation"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            # Without it the query would begin anew.
            raise StoreUnusableError(str(self.checkpoint(sink).parent), f"{_ADOPTED}: {error}") from error
        return str(found)

    def adopt(self, sink: str, location: str) -> None:
        """Remember where a query has its checkpoint, from before it starts."""
        folder = self.checkpoint(sink).parent
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{_ADOPTED}.{os.getpid()}"
        with open_own(temporary) as file:
            json.dump({"checkpointLocation": location}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / _ADOPTED)

    def mend_checkpoint(self, sink: str) -> None:
        """Remove what a driver left that ended while it wrote the offsets of a query's first micro-batch.

        Spark begins a query without logged offsets only if their folder is empty, and so would refuse this one for
        ever. Nothing was read for offsets that are not logged, so nothing is lost with them.
        """
        offsets = self.checkpoint(sink) / "offsets"
        left = list(offsets.iterdir()) if offsets.is_dir() else []
        if all(file.name.startswith(".") for file in left):
            for file in left:
                file.unlink()

    def forget(self) -> None:
        """Remove the checkpoints, seams, and all results but those that another store pins.

        Raises:
            StoreUnusableError: the files cannot be removed.
        """
        checkpoints = [one for one in self.path.glob("live/*/checkpoint") if _is_checkpoint(one)]
        for found in [*checkpoints, *self.path.glob(f"live/*/{_ADOPTED}"), *self.path.glob("seams/*.json")]:
            if found.parent.is_symlink() or found.parent.parent.is_symlink():
                continue
            try:
                # At once and whole: a query would begin in the middle of a checkpoint that is half removed.
                found.rename(self.path / f"{_FORGOTTEN}{uuid.uuid4().hex}")
            except OSError as error:
                raise StoreUnusableError(str(found), error.strerror or str(error)) from error
            for folder in (found.parent, found.parent.parent):
                with contextlib.suppress(OSError):  # others have something in it
                    if folder != self.path:
                        folder.rmdir()
        for left in self.path.glob(f"{_FORGOTTEN}*"):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()
        self._pins.unlink(missing_ok=True)
        self._drop_former_pins()
        self.clean_up()

    def clean_up(self) -> int:
        """Remove the results that no run pins and nobody computes; how many bytes that were.

        What the present run uses must be pinned before.
        """
        freed, pinned = 0, self._pinned()
        for folder in self._folders():
            # A lock is a file, too: none is made for what a pipeline would never have made.
            if is_fingerprint(folder.name) and _name(folder) not in pinned:
                freed += self.remove(StageFolder(folder), lambda one: _name(one.path) not in self._pinned())
            elif folder.name.startswith(HIDDEN):  # by a driver that was killed as it removed it
                with Removal(folder) as found:
                    freed += found.remove(_MARKER)
        return freed

    def remove(self, folder: StageFolder, condition: Callable[[StageFolder], object]) -> int:
        """Remove a result, unless somebody computes it; how many bytes that were.

        The condition is asked when nobody can compute it any more: what was found before may not hold by then.
        """
        lock = FileLock(self._computing(*_name(folder.path)))
        if not lock.acquire():
            return 0
        freed = 0
        try:
            if condition(folder):
                freed = folder.wipe()
        finally:
            lock.path.unlink(missing_ok=True)
            lock.release()
        return freed

    def _folders(self) -> Iterator[Path]:
        """What may be results, of all stages; others may remove them meanwhile."""
        for stage in _folders_in(self.stages):
            if not stage.name.startswith("."):
                yield from _folders_in(stage)

    def _pinned(self) -> set[tuple[str, str]]:
        """Names of folders, and fingerprints, of the results that runs pin."""
        return {
            (safe_name(name), pin.fingerprint)
            for file in self._pinning.glob("*.json")
            if (pins := RunPins.read(file)) is not None
            for name, pin in (*pins.stages.items(), *pins.refreshing.items())
        }

    def _computing(self, folder: str, fingerprint: str) -> Path:
        return self.stages / ".locks" / f"{folder}.{fingerprint}"


def _folders_in(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [Path(one.path) for one in entries if one.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _is_checkpoint(path: Path) -> bool:
    return not path.is_symlink() and any((path / name).exists() for name in ("metadata", "offsets", "commits"))


def _name(folder: Path) -> tuple[str, str]:
    """Of a result: the folder of its stage, and its fingerprint."""
    return folder.parent.name, folder.name
