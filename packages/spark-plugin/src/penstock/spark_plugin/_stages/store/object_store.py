"""A store of objects: committed results of stages, and claims instead of locks.

```
<store>/claim.json                              held by the driver that runs, see `ObjectClaim`; not with a scheduler
<stages>/<stage>/<fingerprint>/_STARTED.json    whose result it is to be
<stages>/<stage>/<fingerprint>/_COMMITTED.json  made on the condition that there is none: what is in it is the result
<stages>/<stage>/<fingerprint>/<attempt>/<vertex>/part-….parquet
<stages>/.pins/<store>.json                     what the last run on a store uses
<stages>/.locks/<stage>.<fingerprint>           claimed while that is computed
<store>/live/<sink>/checkpoint/                 of a live stage's query, where Spark reaches the store
<store>/live/<sink>/adopted.json                where it is instead
<store>/seams/<name>.json                       where a back-fill ends and its stream goes on
```

No result is renamed. Each attempt writes files of its own, and the marker names those that count: whatever else is
there, or comes late, is read by nobody. Where objects are not made on a condition, the marker of a driver that was
taken for dead could take the place of another one: the files of both stay until the result is removed.
"""

import contextlib
import hashlib
import json
import logging
import re
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.aws import AwsError
from penstock.operator_attributes import BlockingStageScheduler
from penstock.spark_plugin._stages.store.formats import SparkFiles, StageFormat
from penstock.spark_plugin._stages.store.names import is_fingerprint, safe_name
from penstock.spark_plugin._stages.store.object_claim import ObjectClaim, StoreClaim
from penstock.spark_plugin._stages.store.pins import RunPins
from penstock.spark_plugin._stages.store.service_claim import ServiceClaim
from penstock.spark_plugin._stages.store.store import CommittedStage
from penstock.spark_plugin._storage.objects import Found, Objects
from penstock.spark_plugin._storage.places import Place
from penstock.spark_plugin.errors import StoreInUseError, StoreLostError, StoreUnusableError

_log = logging.getLogger(__name__)

_MARKER = "_COMMITTED.json"
_STARTED = "_STARTED.json"
_CLAIM = "claim.json"
_ATTEMPT = re.compile(r"[0-9a-f]{32}")
_CHECKPOINT = ("offsets", "commits", "metadata")
"""What makes a folder a checkpoint of Spark, in the order in which it is forgotten."""
_SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marker:
    """What a marker says."""

    result: CommittedStage
    attempt: str
    files: Mapping[str, Sequence[tuple[str, int, int]]]
    """By vertex: names, bytes and rows."""
    schemas: Mapping[str, str]
    """By vertex, as Spark's JSON."""
    by_spark: bool = False
    """Whether Spark has written the files, and is to read them."""
    age_seconds: float = 0.0

    def dump(self) -> bytes:
        document = {
            "attempt": self.attempt,
            "files": self.files,
            "schemas": self.schemas,
            "format": StageFormat.SPARK if self.by_spark else StageFormat.ARROW,
        }
        return json.dumps(self.result.document() | document).encode()

    @classmethod
    def parse(cls, data: bytes, age_seconds: float) -> "_Marker":
        document = json.loads(data)
        by_spark = document.pop("format", StageFormat.ARROW) == StageFormat.SPARK
        attempt, files, schemas = (document.pop(name) for name in ("attempt", "files", "schemas"))
        if _ATTEMPT.fullmatch(attempt) is None:
            raise ValueError(attempt)
        named = {
            vertex: [(str(name), int(size), int(rows)) for name, size, rows in found] for vertex, found in files.items()
        }
        return cls(
            result=CommittedStage.of_document(document),
            attempt=attempt,
            files=named,
            schemas=schemas,
            by_spark=by_spark,
            age_seconds=age_seconds,
        )


class ObjectResult:
    """Where one stage with one fingerprint leaves its result; see `StageResult`."""

    def __init__(
        self, objects: Objects, stage: str, fingerprint: str, check: Callable[[], None], spark_files: SparkFiles
    ) -> None:
        """`check` raises when the driver may not write any more."""
        self._objects = objects
        self._spark_files = spark_files
        self._by_spark = False
        self._stage, self._fingerprint = stage, fingerprint
        self._check = check
        self._key = f"{stage}/{fingerprint}/"
        self._attempt = ""
        self._files: dict[str, list[tuple[str, int, int]]] = {}
        self._schemas: dict[str, str] = {}

    @property
    def name(self) -> tuple[str, str]:
        return self._stage, self._fingerprint

    @property
    def shows_size(self) -> bool:
        marker = self._marker()
        return marker is not None and marker.by_spark

    @property
    def location(self) -> str:
        return f"{self._objects.place.shown}/{self._key}".rstrip("/")

    def committed(self) -> CommittedStage | None:
        marker = self._marker()
        return marker.result if marker is not None else None

    def age_seconds(self, now: float) -> float:
        # By the store's clock, not by that of `now`.
        marker = self._marker()
        return marker.age_seconds if marker is not None else 0.0

    def begin(self, stage: str) -> None:
        self._check()
        self._attempt, self._files, self._schemas, self._by_spark = uuid.uuid4().hex, {}, {}, False
        # Whoever comes first has made it; all of them would write the same.
        self._objects.create(
            self._key + _STARTED, json.dumps({"stage": stage, "fingerprint": self._fingerprint}).encode()
        )

    def write(self, vertex: str, frame: DataFrame) -> None:
        from penstock.spark_plugin._stages.store.rows import WrittenFile, nullable, rows_of, write_rows

        place = self._place(self._attempt, vertex)
        if self._spark_files.writes(frame.sparkSession):
            self._by_spark = True
            self._spark_files.write(frame, place)
            prefix = f"{self._key}{self._attempt}/{safe_name(vertex)}/"
            sizes = {one.key.removeprefix(prefix): one.size for one in self._objects.list(prefix)}
            names = [name for name in sizes if name.startswith("part-") and name.endswith(".parquet")]
            found = [WrittenFile(name, sizes[name], rows_of(place, name)) for name in names]
        else:
            found = write_rows(frame, place)
        self.wrote(vertex, [(one.file, one.size_bytes, one.rows) for one in found], nullable(frame.schema).json())

    def wrote(self, vertex: str, files: Sequence[tuple[str, int, int]], schema: str) -> None:
        """Take files into the result: names, bytes and rows of what lies in the folder of a vertex."""
        self._files[vertex], self._schemas[vertex] = list(files), schema

    def measure(self, vertices: Sequence[str]) -> tuple[int, int]:
        files = [one for vertex in vertices for one in self._files[vertex]]
        return sum(rows for _, _, rows in files), sum(size for _, size, _ in files)

    def output_name(self, vertex: str) -> str:
        return safe_name(vertex)

    def commit(self, stage: CommittedStage) -> CommittedStage:
        self._check()
        mine = _Marker(
            result=stage,
            attempt=self._attempt,
            files=self._files,
            schemas=self._schemas,
            by_spark=self._by_spark,
        )
        if self._objects.create(self._key + _MARKER, mine.dump()) is None:
            # A driver that was taken for dead was first: what it has computed is as good.
            other = self._marker()
            if other is None:
                raise StoreUnusableError(self.location, f"{_MARKER} is there, and is not a marker of this stage")
            mine = other
        if self._objects.conditional:
            self._delete_attempts(lambda attempt: attempt != mine.attempt)
        return mine.result

    def read(self, spark: SparkSession, vertex: str) -> DataFrame:
        from penstock.spark_plugin._stages.store.rows import WrittenFile, read_rows

        marker = self._marker()
        if marker is None or vertex not in marker.files:
            raise StoreUnusableError(self.location, f"the rows of {vertex!r} are not there any more")
        files = [WrittenFile(*one) for one in marker.files[vertex]]
        schema = StructType.fromJson(json.loads(marker.schemas[vertex]))
        place = self._place(marker.attempt, vertex)
        if marker.by_spark:
            return self._spark_files.read(spark, place, [one.file for one in files], schema)
        return read_rows(spark, place, files, schema)

    def damage(self, result: CommittedStage) -> str:
        marker = self._marker()
        if marker is None:
            return "its marker is gone"
        there = {one.key: one.size for one in self._objects.list(f"{self._key}{marker.attempt}/")}
        for vertex, files in marker.files.items():
            for name, size, _ in files:
                found = there.get(f"{self._key}{marker.attempt}/{safe_name(vertex)}/{name}")
                if found != size:
                    what = "is gone" if found is None else f"has {found} bytes of {size}"
                    return f"{name} of {vertex!r} {what}"
        return ""

    def wipe(self) -> int:
        """Remove the result, or what an interrupted run left of it; how many bytes that were.

        Nothing where none of our markers is, and only what has our names. The markers go first and last: half a result
        is none, and what an interruption leaves is still known to be ours.
        """
        if not any(self._is_ours(name) for name in (_MARKER, _STARTED)):
            return 0
        self._objects.delete([self._key + _MARKER])
        freed = self._delete_attempts(lambda _: True)
        self._objects.delete([self._key + _STARTED])
        return freed

    def _delete_attempts(self, condition: Callable[[str], bool]) -> int:
        keys, freed = [], 0
        for one in self._objects.list(self._key):
            attempt, slash, _ = one.key[len(self._key) :].partition("/")
            if slash and _ATTEMPT.fullmatch(attempt) and condition(attempt):
                keys.append(one.key)
                freed += one.size
        self._objects.delete(keys)
        return freed

    def _marker(self) -> _Marker | None:
        found = self._objects.get(self._key + _MARKER)
        try:
            marker = _Marker.parse(found.data, found.age_seconds) if found is not None else None
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        if marker is None or (safe_name(marker.result.stage), marker.result.fingerprint) != self.name:
            return None
        return marker

    def _is_ours(self, name: str) -> bool:
        found = self._objects.get(self._key + name)
        try:
            document = json.loads(found.data if found is not None else b"")
            return (safe_name(document["stage"]), document["fingerprint"]) == self.name
        except (ValueError, TypeError, KeyError, AttributeError):
            return False

    def _place(self, attempt: str, vertex: str) -> Place:
        return self._objects.place.below(f"{self._key}{attempt}/{safe_name(vertex)}")


class ObjectStore:
    """The store of one pipeline on S3, claimed while this is entered; see `PipelineStore`."""

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
            objects: Of the store.
            stages: Of its results, which may be shared.
            claim_seconds: After which the claim of a driver that is not heard of runs out.
            stage_format: Of what is written from now on.
            service: Decides about claims where objects are not made on a condition.
            sleep: Waits for claims that run out.

        Raises:
            StoreUnusableError: no service could decide.
        """
        if service is None and not (objects.conditional and stages.conditional):
            raise StoreUnusableError(
                objects.place.shown,
                "its file system writes nothing on the condition that nobody else has, so that drivers need a stage "
                "scheduler that decides who may write: give run(spark, scheduler_endpoint=…), or set "
                "PENSTOCK_STAGES_ENDPOINT",
            )
        self._service = service
        self._objects, self._stages = objects, stages
        self._spark_files = SparkFiles(stages, stage_format)
        self._seconds = claim_seconds
        self._sleep = sleep
        self._when_lost: Callable[[StoreLostError], None] | None = None
        self._claim = self._claim_of(objects, _CLAIM, self._lost)
        self._pins = f".pins/{hashlib.sha256(self.name.encode()).hexdigest()[:16]}.json"

    def _claim_of(self, objects: Objects, key: str, lost: Callable[[StoreLostError], None] | None = None) -> StoreClaim:
        if objects.conditional:
            return ObjectClaim(objects, key, seconds=self._seconds, lost=lost)
        assert self._service is not None
        return ServiceClaim(self._service, objects.place.shown, key, seconds=self._seconds, lost=lost)

    @property
    def name(self) -> str:
        return self._objects.place.shown

    def __enter__(self) -> Self:
        with self._typed():
            waits = False
            while not self._claim.acquire():
                if self._claim.holder_lives:
                    raise StoreInUseError(self.name, self._claim.holder)
                if not waits:
                    _log.warning(
                        "%s is claimed by %s: waiting until it is renewed or runs out", self.name, self._claim.holder
                    )
                    waits = True
                self._sleep(min(_SECONDS_BETWEEN_LOOKS, self._seconds / 10))
            if not self._objects.conditional:
                self._outgrow()
                return self
            # Once for each store: where conditions are ignored, two drivers would both be let in.
            if self._claim.token == 1 and self._objects.create(_CLAIM, b"{}") is not None:
                self.release()
                reason = "this service ignores If-None-Match, by which S3 makes an object only where there is none"
                raise StoreUnusableError(self.name, reason)
        return self

    def _outgrow(self) -> None:
        """Have a greater number than the driver before, also of a scheduler that has lost its memory since then."""
        found = self._stages.get(self._pins)
        while found is not None and self._claim.token <= _token(found.data):
            self._claim.release()
            if not self._claim.acquire():
                raise StoreInUseError(self.name, self._claim.holder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        self._claim.release()
        for objects in (self._objects, self._stages):
            objects.close()

    def when_lost(self, call: Callable[[StoreLostError], None]) -> None:
        self._when_lost = call

    def _lost(self, error: StoreLostError) -> None:
        if self._when_lost is not None:
            self._when_lost(error)

    def stage(self, name: str, fingerprint: str) -> ObjectResult:
        if not is_fingerprint(fingerprint):
            raise StoreUnusableError(self._stages.place.shown, f"{fingerprint!r} is not a fingerprint of a stage")
        return self._result(safe_name(name), fingerprint)

    def _result(self, folder: str, fingerprint: str) -> ObjectResult:
        return ObjectResult(self._stages, folder, fingerprint, self._claim.check, self._spark_files)

    @contextlib.contextmanager
    def computing(self, name: str, fingerprint: str, *, stopped: threading.Event | None = None) -> Iterator[None]:
        claim = self._computing(safe_name(name), fingerprint)
        stopped = stopped or threading.Event()
        while not claim.acquire():
            if stopped.wait(_SECONDS_BETWEEN_LOOKS):
                raise RuntimeError("the run has ended")
        try:
            yield
        finally:
            self._end(claim, safe_name(name), fingerprint)

    def _computing(self, folder: str, fingerprint: str) -> StoreClaim:
        return self._claim_of(self._stages, _lock(folder, fingerprint))

    def _end(self, claim: StoreClaim, folder: str, fingerprint: str) -> None:
        claim.release()
        with contextlib.suppress(AwsError):  # it is released
            # Another may have it by now: then a result is computed twice at worst, and committed once.
            self._stages.delete([_lock(folder, fingerprint)])

    def pins(self) -> RunPins | None:
        found = self._stages.get(self._pins)
        return RunPins.parse(found.data) if found is not None else None

    def pin(self, pins: RunPins) -> None:
        self._claim.check()
        while True:
            found = self._stages.get(self._pins)
            if found is not None and RunPins.parse(found.data) == pins and _token(found.data) == self._claim.token:
                return
            if found is not None and _token(found.data) > self._claim.token:
                raise StoreLostError(self.name, "another driver has taken it over")
            data = json.dumps({**asdict(pins), "claim": self._claim.token}).encode()
            version = (
                self._stages.create(self._pins, data)
                if found is None
                else self._stages.replace(self._pins, data, found.version)
            )
            if version is not None:
                return

    def checkpoint_url(self, sink: str) -> str:
        return f"{self.name}/live/{safe_name(sink)}/checkpoint"

    def has_begun(self, sink: str) -> None:
        """As Spark sees it: by a file system of its own."""

    def mend_checkpoint(self, sink: str) -> None:
        """An object appears whole: no driver leaves half of one."""

    def adopted(self, sink: str) -> str | None:
        found = self._objects.get(_adopted(sink))
        if found is None:
            return None
        try:
            return str(json.loads(found.data)["checkpointLocation"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreUnusableError(f"{self.name}/{_adopted(sink)}", str(error)) from error

    def adopt(self, sink: str, location: str) -> None:
        self._claim.check()
        data = json.dumps({"checkpointLocation": location, "nonce": secrets.token_hex(8)}).encode()
        while True:
            found = self._objects.get(_adopted(sink))
            if found is None:
                version = self._objects.create(_adopted(sink), data)
            else:
                version = self._objects.replace(_adopted(sink), data, found.version)
            if version is not None:
                return

    def forget(self) -> None:
        self._claim.check()
        with self._typed():
            sinks: dict[str, list[str]] = {}
            for one in self._objects.list("live/"):
                parts = one.key.split("/")
                if len(parts) > 3 and parts[2] == "checkpoint":
                    sinks.setdefault(parts[1], []).append(one.key)
                elif len(parts) == 3 and parts[2] == "adopted.json":
                    self._objects.delete([one.key])
            for keys in sinks.values():
                self._forget_checkpoint(keys)
            for one in self._objects.list("seams/"):
                if one.key.endswith(".json") and _is_seam(self._objects.get(one.key)):
                    self._objects.delete([one.key])
            self._stages.delete([self._pins])
            self.clean_up()

    def _forget_checkpoint(self, keys: Sequence[str]) -> None:
        kinds: dict[str, list[str]] = {}
        for key in keys:
            kinds.setdefault(key.split("/")[3], []).append(key)
        if not set(_CHECKPOINT) & kinds.keys():
            return
        # The last offsets at the end of theirs: interrupted, the query goes on as if nothing was forgotten.
        for key in sorted(kinds.pop("offsets", ()), key=lambda key: (len(key), key)):
            self._objects.delete([key])
        for kind in kinds:
            self._objects.delete(kinds[kind])

    def clean_up(self) -> int:
        """Remove the results that no run pins and nobody computes; how many bytes that were."""
        with self._typed():
            freed, pinned = 0, self._pinned()
            names = {
                (parts[0], parts[1])
                for one in self._stages.list("")
                if len(parts := one.key.split("/")) > 2 and not parts[0].startswith(".") and is_fingerprint(parts[1])
            }
            for folder, fingerprint in sorted(names - pinned):
                freed += self.remove(
                    self._result(folder, fingerprint), lambda result: result.name not in self._pinned()
                )
            return freed

    def remove(self, result: Any, condition: Callable[[Any], object]) -> int:
        folder, fingerprint = result.name
        if not any(result._is_ours(name) for name in (_MARKER, _STARTED)):
            return 0  # no claim is made either for what is not ours
        claim = self._computing(folder, fingerprint)
        if not claim.acquire():
            return 0
        try:
            self._claim.check()
            return result.wipe() if condition(result) else 0
        finally:
            self._end(claim, folder, fingerprint)

    def identity(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()[:32]

    def results_identity(self) -> str:
        return hashlib.sha256(self._stages.place.shown.encode()).hexdigest()[:32]

    def _pinned(self) -> set[tuple[str, str]]:
        found: set[tuple[str, str]] = set()
        for one in self._stages.list(".pins/"):
            data = self._stages.get(one.key)
            pins = RunPins.parse(data.data) if data is not None else None
            if pins is not None:
                used = (*pins.stages.items(), *pins.refreshing.items())
                found |= {(safe_name(name), pin.fingerprint) for name, pin in used}
        return found

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except AwsError as error:
            raise StoreUnusableError(self.name, str(error)) from error


def _lock(folder: str, fingerprint: str) -> str:
    return f".locks/{folder}.{fingerprint}"


def _adopted(sink: str) -> str:
    return f"live/{safe_name(sink)}/adopted.json"


def _is_seam(found: Found | None) -> bool:
    try:
        return found is not None and "arrivalMillis" in json.loads(found.data)
    except (ValueError, TypeError):
        return False


def _token(data: bytes) -> int:
    try:
        return int(json.loads(data)["claim"])
    except (ValueError, TypeError, KeyError):
        return 0
