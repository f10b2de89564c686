"""The result of one stage in a store: a marker, and the Parquet files of the attempt that it names."""

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.spark_plugin._for_stages import Objects
from penstock.spark_plugin._stages.store.formats import SparkFiles, StageFormat
from penstock.spark_plugin._stages.store.pins import safe_name
from penstock.spark_plugin.errors import StoreUnusableError

_MARKER = "_COMMITTED.json"
_STARTED = "_STARTED.json"
_ATTEMPT = re.compile(r"[0-9a-f]{32}")
_LEFT = re.compile(
    r"[0-9a-f]{32}/[^/]+/(_temporary/.*|_SUCCESS|part-[^/]+\.parquet|\.[^/]+\.crc)"
    r"|\.(_STARTED|_COMMITTED)\.json\.[0-9a-f]{32}"
)
"""Keys of files that jobs and drivers leave behind, below the folder of a result."""


@dataclass(frozen=True, slots=True)
class CommittedStage:
    """The result of a bounded stage."""

    stage: str
    fingerprint: str
    rows: int
    size_bytes: int
    seconds: float
    """Duration of the run that made it."""
    outputs: Mapping[str, str]
    """Folder of Parquet files by vertex, relative to the folder of the attempt."""
    world: str = ""
    """Inputs that no fingerprint covers, as text; empty if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marker:
    """What a marker contains."""

    result: CommittedStage
    attempt: str
    files: Mapping[str, Sequence[tuple[str, int, int]]]
    """By vertex: names, bytes and rows."""
    schemas: Mapping[str, str] = field(default_factory=dict)
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
        return json.dumps(asdict(self.result) | document).encode()

    @classmethod
    def parse(cls, data: bytes, age_seconds: float) -> Self:
        document = json.loads(data)
        result = CommittedStage(**{one.name: document[one.name] for one in fields(CommittedStage)})
        if _ATTEMPT.fullmatch(document["attempt"]) is None:
            raise ValueError(document["attempt"])
        named = {
            vertex: [(str(name), int(size), int(rows)) for name, size, rows in found]
            for vertex, found in document["files"].items()
        }
        return cls(
            result=result,
            attempt=document["attempt"],
            files=named,
            schemas=document["schemas"],
            by_spark=document["format"] == StageFormat.SPARK,
            age_seconds=age_seconds,
        )


class StageResult:
    """The result of one stage with one fingerprint."""

    def __init__(
        self, objects: Objects, stage: str, fingerprint: str, check: Callable[[], None], spark_files: SparkFiles
    ) -> None:
        """`check`: raises if the driver may not write any more."""
        self._objects = objects
        self._spark_files = spark_files
        self._check = check
        self._key = f"{stage}/{fingerprint}/"
        self._attempt = ""
        self._by_spark = False
        self._files: dict[str, list[tuple[str, int, int]]] = {}
        self._schemas: dict[str, str] = {}
        self.name = stage, fingerprint
        """Folder of the stage, and fingerprint."""

    @property
    def shows_size(self) -> bool:
        """Whether Spark knows the size of the rows that it reads from here."""
        marker = self._marker()
        return marker is not None and marker.by_spark

    @property
    def location(self) -> str:
        """Path or URL, for messages and for other drivers."""
        return f"{self._objects.name}/{self._key}".rstrip("/")

    @property
    def is_ours(self) -> bool:
        """Whether a run made the folder.

        A job that outlives its driver may write after the folder was removed. Then there are attempts without a note.
        """
        if any(self._names_us(name) for name in (_MARKER, _STARTED)):
            return True
        files = [one.key.removeprefix(self._key) for one in self._objects.list(self._key)]
        folders = self._objects.folders(self._key)
        return bool(files or folders) and all(map(_LEFT.fullmatch, files)) and all(map(_ATTEMPT.fullmatch, folders))

    def committed(self) -> CommittedStage | None:
        """The result, if it was committed."""
        marker = self._marker()
        return marker.result if marker is not None else None

    def age_seconds(self) -> float:
        """Seconds since the commit, by the clock of the store; 0 without a result."""
        marker = self._marker()
        return marker.age_seconds if marker is not None else 0.0

    def begin(self, stage: str) -> None:
        """Begin an attempt to compute a stage."""
        self._check()
        self._attempt, self._files, self._schemas, self._by_spark = uuid.uuid4().hex, {}, {}, False
        # All drivers would write the same.
        started = json.dumps({"stage": stage, "fingerprint": self.name[1]}).encode()
        self._objects.write(self._key + _STARTED, started, if_version=None)

    def write(self, vertex: str, frame: DataFrame) -> None:
        """Write the rows of a vertex; no reader sees them before `commit`."""
        from penstock.spark_plugin._stages.store.rows import nullable, rows_of, write_rows

        folder = self.folder(vertex)
        if self._spark_files.writes(frame.sparkSession):
            self._by_spark = True
            self._spark_files.write(frame, folder.rstrip("/"))
            sizes = self._sizes(folder)
            found = [(name, size, rows_of(self._objects, folder + name)) for name, size in sizes.items()]
        else:
            place = self._objects.place.below(folder.rstrip("/"))
            found = [(one.file, one.size_bytes, one.rows) for one in write_rows(frame, place)]
        self.wrote(vertex, found, nullable(frame.schema).json())

    def folder(self, vertex: str, attempt: str | None = None) -> str:
        """Key of the folder of a vertex in an attempt, by default in the one that was begun."""
        attempt = self._attempt if attempt is None else attempt
        return f"{self._key}{attempt}/{safe_name(vertex)}/"

    def wrote(self, vertex: str, files: Sequence[tuple[str, int, int]], schema: str) -> None:
        """Add files in the folder of a vertex to the attempt: names, bytes and rows."""
        self._files[vertex], self._schemas[vertex] = list(files), schema

    def measure(self, vertices: Sequence[str]) -> tuple[int, int]:
        """Rows and bytes that were written."""
        files = [one for vertex in vertices for one in self._files[vertex]]
        return sum(rows for _, _, rows in files), sum(size for _, size, _ in files)

    def commit(self, stage: CommittedStage) -> CommittedStage:
        """Declare the attempt complete, at once; returns what is committed now."""
        self._check()
        mine = _Marker(
            result=stage, attempt=self._attempt, files=self._files, schemas=self._schemas, by_spark=self._by_spark
        )
        if self._objects.write(self._key + _MARKER, mine.dump(), if_version=None) is None:
            # A driver that seemed dead was first: its result is equivalent.
            other = self._marker()
            if other is None:
                raise StoreUnusableError(self.location, f"{_MARKER} is there, and is not a marker of this stage")
            mine = other
        if self._objects.conditional:
            self.sweep()
        return mine.result

    def unnamed(self) -> list[str]:
        """The attempts that the marker does not name. They are not read; jobs may still write there."""
        marker = self._marker()
        named = marker.attempt if marker is not None else ""
        return [one for one in self._objects.folders(self._key) if _ATTEMPT.fullmatch(one) and one != named]

    def sweep(self) -> int:
        """Remove the attempts that the marker does not name; returns the bytes. The caller holds the result's claim."""
        return sum(self._objects.clear(f"{self._key}{attempt}/") for attempt in self.unnamed())

    def read(self, spark: SparkSession, vertex: str) -> DataFrame:
        """The committed rows of a vertex."""
        from penstock.spark_plugin._stages.store.rows import WrittenFile, read_rows

        marker = self._marker()
        if marker is None or vertex not in marker.files:
            raise StoreUnusableError(self.location, f"the rows of {vertex!r} are not there any more")
        folder = self.folder(vertex, marker.attempt)
        files = [WrittenFile(*one) for one in marker.files[vertex]]
        schema = StructType.fromJson(json.loads(marker.schemas[vertex]))
        if marker.by_spark:
            return self._spark_files.read(spark, [folder + one.file for one in files], schema)
        return read_rows(spark, self._objects.place.below(folder.rstrip("/")), files, schema)

    def damage(self) -> str:
        """What is wrong with the files of a committed result, as text; empty if nothing is. Reads no rows."""
        from penstock.spark_plugin._stages.store.rows import rows_of

        marker = self._marker()
        if marker is None:
            return "its marker is gone"
        for vertex, files in marker.files.items():
            folder = self.folder(vertex, marker.attempt)
            there = self._sizes(folder)
            for name, size, _ in files:
                if there.get(name) != size:
                    what = "is gone" if name not in there else f"has {there[name]} bytes of {size}"
                    return f"{name} of {vertex!r} {what}"
            if self._objects.spark_reaches:
                # After a crash of the machine a file may have its size without its content.
                for name in there:
                    try:
                        rows_of(self._objects, folder + name)
                    except (OSError, pa.ArrowException) as error:
                        return f"{name} of {vertex!r} cannot be read: {str(error).splitlines()[0]}"
        return ""

    def wipe(self) -> int:
        """Remove the result, or the rest of an interrupted run; returns the bytes.

        Does nothing unless a run made the folder. The marker is removed first, so that no partial result is read, and
        _STARTED.json last, so that an interrupted removal is continued.
        """
        if not self.is_ours:
            return 0
        self._objects.delete([self._key + _MARKER])
        freed = self.sweep()
        self._objects.delete([self._key + _STARTED])
        return freed

    def _sizes(self, folder: str) -> dict[str, int]:
        """Sizes of the Parquet files in a folder, by name."""
        found = {one.key.removeprefix(folder): one.size for one in self._objects.list(folder)}
        return {name: size for name, size in found.items() if name.startswith("part-") and name.endswith(".parquet")}

    def _marker(self) -> _Marker | None:
        found = self._objects.read(self._key + _MARKER)
        try:
            marker = _Marker.parse(found.data, found.age_seconds) if found is not None else None
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        if marker is None or (safe_name(marker.result.stage), marker.result.fingerprint) != self.name:
            return None
        return marker

    def _names_us(self, name: str) -> bool:
        found = self._objects.read(self._key + name)
        try:
            document = json.loads(found.data if found is not None else b"")
            return (safe_name(document["stage"]), document["fingerprint"]) == self.name
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
