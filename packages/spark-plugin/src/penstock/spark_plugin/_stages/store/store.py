"""The store of a pipeline: committed results of stages, checkpoints of live ones, and a claim of the driver that runs.

```
<store>/lock, or claim.json                     held by the driver that runs; elsewhere by the stage scheduler
<stages>/<stage>/<fingerprint>/_STARTED.json    names the stage
<stages>/<stage>/<fingerprint>/_COMMITTED.json  created once: its content is the result
<stages>/<stage>/<fingerprint>/<attempt>/<vertex>/part-….parquet
<stages>/.pins/<store>.json                     what the last run on a store uses
<stages>/.locks/<stage>.<fingerprint>           held while that is computed
<store>/live/<sink>/checkpoint/                 of a live stage's query, where Spark reaches the store
<store>/live/<sink>/adopted.json                the location of a checkpoint outside of the store
<store>/seams/<name>.json                       where a back-fill ends and its stream continues
```

No result is renamed. Each attempt writes its own files, and the marker names the files that count: other files, and
files that come late, are not read, and the next run removes them. Without conditional writes, the marker of a driver
that seemed dead could replace another marker: the files of both stay until the next run. `stages` may be elsewhere, be
shared by the stores of several pipelines, and contain other files: only files with these names are removed.
"""

import contextlib
import hashlib
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from types import TracebackType
from typing import Self

from penstock.aws import AwsError
from penstock.operator_attributes import BlockingStageScheduler
from penstock.spark_plugin._for_stages import Objects
from penstock.spark_plugin._stages.store.file_lock import FileLock
from penstock.spark_plugin._stages.store.formats import SparkFiles, StageFormat
from penstock.spark_plugin._stages.store.object_claim import ObjectClaim, StoreClaim
from penstock.spark_plugin._stages.store.pins import RunPins, is_fingerprint, safe_name
from penstock.spark_plugin._stages.store.result import StageResult
from penstock.spark_plugin._stages.store.service_claim import ServiceClaim
from penstock.spark_plugin._storage.folder import FolderObjects
from penstock.spark_plugin.errors import PipelineError, StoreLostError, StoreUnusableError

_log = logging.getLogger(__name__)
_CLAIM = "claim.json"
_SECONDS_BETWEEN_LOOKS = 0.5


class StageStore:
    """The store of one pipeline, on one of several backends. One driver at a time holds it, from enter to exit."""

    def __init__(
        self,
        objects: Objects,
        stages: Objects,
        *,
        claim_seconds: float = 30.0,
        stage_format: StageFormat = StageFormat.ARROW,
        service: BlockingStageScheduler | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Claim nothing yet.

        Args:
            objects: The objects of the store.
            stages: The objects of its results, which may be shared.
            claim_seconds: Time without a heartbeat after which the claim of a driver expires; folders use locks.
            stage_format: How results are written; in a folder Spark writes them.
            service: Decides about claims for stores without conditional writes.
            sleep: Waits while a claim expires.

        Raises:
            StoreUnusableError: a service is needed.
        """
        if service is None and not (objects.conditional and stages.conditional):
            raise StoreUnusableError(
                objects.name,
                "its file system has no conditional writes, so that a stage scheduler has to decide which driver may "
                "write: give run(spark, scheduler_endpoint=…), or set PENSTOCK_STAGES_ENDPOINT",
            )
        self._service = service
        self._objects, self._stages = objects, stages
        self._spark_files = SparkFiles(stages, stage_format, objects.name)
        self._seconds = claim_seconds
        self._sleep = sleep
        self._opened_at = time.monotonic()
        self._when_lost: Callable[[StoreLostError], None] | None = None
        self._claim = self._claim_of(objects, _CLAIM, self._lost)
        self.session = ""
        """The session whose jobs write into the store, for the next driver."""
        self.last_session = ""
        """The session of the driver before this one, once the store is entered; empty without one."""

    def _claim_of(self, objects: Objects, key: str, lost: Callable[[StoreLostError], None] | None = None) -> StoreClaim:
        if isinstance(objects, FolderObjects):
            return FileLock(objects.root / ("lock" if key == _CLAIM else key))
        if objects.conditional:
            return ObjectClaim(objects, key, seconds=self._seconds, lost=lost)
        assert self._service is not None
        return ServiceClaim(self._service, objects.name, key, seconds=self._seconds, lost=lost)

    @property
    def name(self) -> str:
        """Its path or URL."""
        return self._objects.name

    def __enter__(self) -> Self:
        """Raises: PipelineError: STORE_IN_USE: another driver holds it."""
        with self._typed():
            waits = False
            while not self._claim.acquire():
                if self._claim.holder_lives:
                    raise PipelineError.of("STORE_IN_USE", store=self.name, holder=self._claim.holder)
                if not waits:
                    _log.warning(
                        "%s is claimed by %s: waiting until it is renewed or runs out", self.name, self._claim.holder
                    )
                    waits = True
                self._sleep(min(_SECONDS_BETWEEN_LOOKS, self._seconds / 10))
            try:
                self._begin()
                found = self._stages.read(self._pins())
                self.last_session = _session(found.data) if found is not None else ""
            except BaseException:
                self.release()
                raise
        return self

    def _begin(self) -> None:
        if isinstance(self._objects, FolderObjects):
            self._part_from_original(self._objects)
        elif not self._objects.conditional:
            # A larger number than the driver before, also if the scheduler has lost its memory since then.
            found = self._stages.read(self._pins())
            while found is not None and self._claim.token <= _token(found.data):
                self._claim.release()
                if not self._claim.acquire():
                    raise PipelineError.of("STORE_IN_USE", store=self.name, holder=self._claim.holder)
        # Once for each store: if the service ignored conditions, two drivers could enter at once.
        elif self._claim.token == 1 and self._objects.write(_CLAIM, b"{}", if_version=None) is not None:
            reason = "this service ignores If-None-Match, by which S3 creates an object only if it does not exist"
            raise StoreUnusableError(self.name, reason)

    def _part_from_original(self, folder: FolderObjects) -> None:
        """Give a copy of a store another identity: with the same one, each store would remove the other's results.

        It keeps the copied pins and checkpoints.
        """
        stages, found = self._stages, self.pins()
        assert isinstance(stages, FolderObjects)
        is_shared = not stages.root.is_relative_to(folder.root)
        if found is None or not is_shared or found.store == self.name or not folder.is_copy_of(found.store):
            return
        identity = secrets.token_hex(16)
        # In this order: after a kill between the two writes, the next driver repeats both.
        pins = json.dumps(asdict(replace(found, store=self.name))).encode()
        stages.write(f".pins/{identity}.json", pins, if_version=None)
        folder.change_identity(identity)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Release the claim, and close connections. Can be repeated."""
        self._claim.release()
        for objects in (self._objects, self._stages):
            objects.close()

    def when_lost(self, call: Callable[[StoreLostError], None]) -> None:
        """Set the function that is called, on its own thread, if another driver takes over the store."""
        self._when_lost = call

    def _lost(self, error: StoreLostError) -> None:
        if self._when_lost is not None:
            self._when_lost(error)

    def identity(self) -> str:
        """An identifier of the store that is the same for all drivers."""
        return self._objects.identity()

    def scope(self) -> str:
        """Distinguishes the jobs of its driver; a copy of the store in another place has another scope."""
        return f"penstock-{hashlib.sha256(f'{self.identity()} {self.name}'.encode()).hexdigest()[:16]}"

    def results_identity(self) -> str:
        """An identifier of its results that is the same for all drivers."""
        return self._stages.identity()

    def stage(self, name: str, fingerprint: str) -> StageResult:
        """The result of a stage with a fingerprint. Raises: StoreUnusableError: the fingerprint is invalid."""
        if not is_fingerprint(fingerprint):
            raise StoreUnusableError(self._stages.name, f"{fingerprint!r} is not a fingerprint of a stage")
        return self._result(safe_name(name), fingerprint)

    def _result(self, folder: str, fingerprint: str) -> StageResult:
        return StageResult(self._stages, folder, fingerprint, self._claim.check, self._spark_files)

    @contextlib.contextmanager
    def computing(self, name: str, fingerprint: str, *, stopped: threading.Event | None = None) -> Iterator[None]:
        """Hold the right to compute a stage's result; waits for another driver that computes the same result.

        Raises:
            RuntimeError: `stopped` was set meanwhile.
        """
        claim = self._claim_of(self._stages, _lock(safe_name(name), fingerprint))
        stopped = stopped or threading.Event()
        while not claim.acquire():
            if stopped.wait(_SECONDS_BETWEEN_LOOKS):
                raise RuntimeError("the run has ended")
        try:
            yield
        finally:
            claim.release(remove=True)

    def _pins(self) -> str:
        return f".pins/{safe_name(self.identity())}.json"

    def pins(self) -> RunPins | None:
        """The results that the last run on this store uses."""
        found = self._stages.read(self._pins())
        return RunPins.parse(found.data) if found is not None else None

    def pin(self, pins: RunPins) -> None:
        """Declare which results this run uses."""
        self._claim.check()
        key = self._pins()
        while True:
            found = self._stages.read(key)
            # Most runs keep the pins; a write takes some 10 ms to reach the disk.
            said = (RunPins.parse(found.data), _token(found.data), _session(found.data)) if found is not None else None
            if said == (pins, self._claim.token, self.session):
                return
            if found is not None and _token(found.data) > self._claim.token:
                raise StoreLostError(self.name, "another driver has taken it over")
            if self._put(self._stages, key, {**asdict(pins), "claim": self._claim.token, "session": self.session}):
                return

    def checkpoint_url(self, sink: str) -> str:
        """URL of the checkpoint of a live stage's query, if its user does not give another."""
        return self._objects.url(f"live/{safe_name(sink)}/checkpoint")

    def mend_checkpoint(self, sink: str) -> None:
        """Remove files of a driver that ended while it wrote the offsets of a query's first micro-batch.

        Spark starts a query without logged offsets only if their folder is empty, and would always refuse this one. No
        rows were read for offsets that are not logged, so no rows are lost.
        """
        left = [one.key for one in self._objects.list(f"live/{safe_name(sink)}/checkpoint/offsets/")]
        if all(key.rpartition("/")[2].startswith(".") for key in left):
            self._objects.delete(left)

    def adopted(self, sink: str) -> str | None:
        """The location outside of the store where a query has its checkpoint; None without one."""
        found = self._objects.read(_adopted(sink))
        if found is None:
            return None
        try:
            return str(json.loads(found.data)["checkpointLocation"])
        except (ValueError, KeyError, TypeError) as error:
            # Without the location the query would start from the beginning.
            raise StoreUnusableError(f"{self.name}/{_adopted(sink)}", str(error)) from error

    def adopt(self, sink: str, location: str) -> None:
        """Record where a query has its checkpoint, before it starts."""
        self._claim.check()
        while not self._put(self._objects, _adopted(sink), {"checkpointLocation": location}):
            pass  # another driver wrote at the same time

    def _put(self, objects: Objects, key: str, document: dict[str, object]) -> bool:
        """Create or replace a document, unless another driver does so at the same time."""
        data, found = json.dumps(document | {"nonce": secrets.token_hex(8)}).encode(), objects.read(key)
        return objects.write(key, data, if_version=found and found.version) is not None

    def forget(self) -> None:
        """Remove the checkpoints, seams, and all results except results that another store pins.

        Raises:
            StoreUnusableError: they cannot be removed.
        """
        self._claim.check()
        with self._typed():
            for sink in self._objects.folders("live/"):
                folder = f"live/{sink}/checkpoint/"
                if {"offsets", "commits"} & set(self._objects.folders(folder)):
                    # The last offsets after the others: interrupted, the query continues as if nothing was forgotten.
                    self._objects.clear(folder, first="offsets")
                self._objects.delete([f"live/{sink}/adopted.json"])
            for one in list(self._objects.list("seams/")):
                if one.key.endswith(".json") and self._is_seam(one.key):
                    self._objects.delete([one.key])
            self._stages.delete([self._pins()])
            self.clean_up()

    def clean_up(self) -> int:
        """Remove results that no run pins, and attempts that were not committed; returns the bytes.

        Results that a driver computes are kept. The current run must pin its results before.
        """
        with self._typed():
            freed, pinned = 0, self._pinned()
            for folder in self._stages.folders(""):
                for fingerprint in self._stages.folders(f"{folder}/") if not folder.startswith(".") else ():
                    if is_fingerprint(fingerprint):
                        result = self._result(folder, fingerprint)
                        if result.name not in pinned or result.unnamed():
                            freed += self.remove(result, lambda result: result.name not in self._pinned())
            for lock in list(self._stages.list(".locks/")):  # of drivers that were killed
                claim = self._claim_of(self._stages, lock.key)
                if claim.acquire():
                    claim.release(remove=True)
            return freed

    def remove(self, result: StageResult, condition: Callable[[StageResult], object]) -> int:
        """Remove a result, or else its uncommitted attempts, unless a driver computes it; returns the bytes.

        The condition is checked while no driver can compute the result: an earlier look may be outdated.
        """
        if not result.is_ours:
            return 0  # without making a claim
        claim = self._claim_of(self._stages, _lock(*result.name))
        if not claim.acquire():
            return 0
        try:
            self._claim.check()
            if condition(result):
                return result.wipe()
            # Without conditional writes, a marker of this run may have replaced another one whose files are still read.
            is_old = result.age_seconds() > time.monotonic() - self._opened_at
            return result.sweep() if self._stages.conditional or is_old else 0
        finally:
            claim.release(remove=True)

    def _pinned(self) -> set[tuple[str, str]]:
        """Folders of stages, and fingerprints, of the results that runs pin."""
        found: set[tuple[str, str]] = set()
        for one in self._stages.list(".pins/"):
            data = self._stages.read(one.key) if one.key.endswith(".json") else None
            pins = RunPins.parse(data.data) if data is not None else None
            if pins is not None:
                used = (*pins.stages.items(), *pins.refreshing.items())
                found |= {(safe_name(name), pin.fingerprint) for name, pin in used}
        return found

    def _is_seam(self, key: str) -> bool:
        found = self._objects.read(key)
        try:
            return found is not None and "arrivalMillis" in json.loads(found.data)
        except (ValueError, TypeError):
            return False

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except (AwsError, OSError) as error:
            raise StoreUnusableError(self.name, str(error)) from error


def _lock(folder: str, fingerprint: str) -> str:
    return f".locks/{folder}.{fingerprint}"


def _adopted(sink: str) -> str:
    return f"live/{safe_name(sink)}/adopted.json"


def _session(data: bytes) -> str:
    try:
        return str(json.loads(data).get("session", ""))
    except (ValueError, AttributeError):
        return ""


def _token(data: bytes) -> int:
    try:
        return int(json.loads(data)["claim"])
    except (ValueError, TypeError, KeyError):
        return 0
