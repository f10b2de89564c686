"""Stores of stages on each backend, and on objects whose user may be killed at any of its writes."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from s3_servers import options, s3_client

from penstock.aws import StoredValue
from penstock.spark_plugin._objects import Listed, Objects, S3Objects
from penstock.spark_plugin._places import Place
from penstock.spark_plugin._stages.store.object_claim import ObjectClaim
from penstock.spark_plugin._stages.store.opening import StorePlace
from penstock.spark_plugin._stages.store.pins import Pin, RunPins
from penstock.spark_plugin._stages.store.result import CommittedStage, StageResult
from penstock.spark_plugin._stages.store.store import StageStore
from penstock.spark_plugin._storage.folder import FolderObjects

FINGERPRINTS = [character * 24 for character in "abcd"]


class Killed(BaseException):
    """Simulates kill -9: it is not caught, and nothing is cleaned up."""


@dataclass
class Life:
    """The life of one driver, over all that it writes."""

    dies_at: float
    """As it sends write n, counted from 1; with a half: when that was carried out."""
    writes: list[str] = field(default_factory=list)
    is_over: bool = False

    def reach(self, point: float) -> None:
        self.is_over |= point == self.dies_at
        if self.is_over:
            raise Killed

    def write(self, what: str, call: Callable[[], Any]) -> Any:
        self.writes.append(what)
        number = len(self.writes)
        self.reach(number)
        answer = call()
        self.reach(number + 0.5)
        return answer


class Mortal(Objects):
    """Objects whose user may be killed at one of its writes."""

    def __init__(self, objects: Objects, life: Life) -> None:
        self.objects, self.life = objects, life
        self.place, self.conditional = objects.place, objects.conditional

    def below(self, path: str) -> Objects:
        return Mortal(self.objects.below(path), self.life)

    def read(self, key: str) -> StoredValue | None:
        self.life.reach(0)
        return self.objects.read(key)

    def list(self, prefix: str) -> Iterator[Listed]:
        self.life.reach(0)
        return self.objects.list(prefix)

    def write(self, key: str, data: bytes, *, if_version: str | None) -> str | None:
        version: str | None = self._write(key, lambda: self.objects.write(key, data, if_version=if_version))
        return version

    def delete(self, keys: Sequence[str]) -> None:
        self._write(" ".join(keys), lambda: self.objects.delete(keys))

    def close(self) -> None:
        self.objects.close()

    def _write(self, what: str, call: Callable[[], Any]) -> Any:
        return self.life.write(what, call)


class MortalFolder(FolderObjects):
    """A folder whose user may be killed at one of its writes."""

    def __init__(self, root: Path, life: Life) -> None:
        super().__init__(root)
        self.life = life

    def write(self, key: str, data: bytes, *, if_version: str | None) -> str | None:
        write = super().write
        version: str | None = self.life.write(key, lambda: write(key, data, if_version=if_version))
        return version

    def delete(self, keys: Sequence[str]) -> None:
        self.life.write(" ".join(keys), lambda: super(MortalFolder, self).delete(keys))

    def clear(self, prefix: str, *, first: str = "") -> int:
        return int(self.life.write(prefix, lambda: super(MortalFolder, self).clear(prefix, first=first)))


@dataclass
class InMemory(Objects):
    """Objects as S3 has them, by whole keys."""

    place: Place
    held: dict[str, tuple[bytes, float]]
    conditional: bool = True

    def below(self, path: str) -> Objects:
        return InMemory(self.place.below(path), self.held)

    def read(self, key: str) -> StoredValue | None:
        found = self.held.get(self.place.prefix + key)
        return StoredValue(found[0], str(hash(found[0])), time.time() - found[1]) if found is not None else None

    def list(self, prefix: str) -> Iterator[Listed]:
        first = self.place.prefix
        for key in sorted(self.held):
            if key.startswith(first + prefix):
                yield Listed(key.removeprefix(first), len(self.held[key][0]))

    def write(self, key: str, data: bytes, *, if_version: str | None) -> str | None:
        if if_version is None:
            kept = self.held.setdefault(self.place.prefix + key, (data, time.time()))
            return str(hash(data)) if kept[0] == data else None
        found = self.read(key)
        if found is None or found.version != if_version:
            return None
        self.held[self.place.prefix + key] = data, time.time()
        return str(hash(data))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.held.pop(self.place.prefix + key, None)


class World:
    """A bucket, and stores on it as drivers open them."""

    bucket = "bucket"
    own: tuple[str, ...] = ("claim.json",)
    """Keys that each store has that was entered."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[bytes, float]] = {}

    def objects(self, folder: str) -> Objects:
        return InMemory(Place.parse(f"s3://{self.bucket}/{folder}"), self.held)

    def store(
        self, name: str = "store", *, stages: str = "", life: Life | None = None, seconds: float = 30.0
    ) -> StageStore:
        life = life or Life(-1)
        objects, results = (Mortal(self.objects(folder), life) for folder in (name, stages or f"{name}/stages"))
        return StageStore(objects, results, claim_seconds=seconds)

    def die(self, store: StageStore) -> None:
        """Stop the heartbeat of a store's claim, as the end of the process does."""
        assert isinstance(store._claim, ObjectClaim)
        store._claim.abandon()

    def all_keys(self) -> set[str]:
        return set(self.held)

    def data(self, key: str) -> bytes:
        return self.held[key][0]

    def put(self, key: str, data: bytes = b"precious") -> None:
        self.held[key] = data, time.time()

    def remove(self, key: str) -> None:
        del self.held[key]

    def put_part(self, result: StageResult, name: str, data: bytes) -> None:
        """A file of an attempt, as a task writes it."""
        self.put(f"{result._objects.name.partition(self.bucket)[2].strip('/')}/{result.folder('daily')}{name}", data)


class FolderWorld(World):
    """A folder, and stores in it as drivers open them."""

    own: tuple[str, ...] = ("lock", ".id")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def store(
        self, name: str = "store", *, stages: str = "", life: Life | None = None, seconds: float = 30.0
    ) -> StageStore:
        if life is None:
            return folder_store(self.folder / name, self.folder / stages if stages else None)
        objects, results = (MortalFolder(self.folder / one, life) for one in (name, stages or f"{name}/stages"))
        return StageStore(objects, results)

    def die(self, store: StageStore) -> None:
        store._claim.release()

    def all_keys(self) -> set[str]:
        return {one.relative_to(self.folder).as_posix() for one in self.folder.rglob("*") if one.is_file()}

    def data(self, key: str) -> bytes:
        return (self.folder / key).read_bytes()

    def put(self, key: str, data: bytes = b"precious") -> None:
        (self.folder / key).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / key).write_bytes(data)

    def remove(self, key: str) -> None:
        (self.folder / key).unlink()

    def put_part(self, result: StageResult, name: str, data: bytes) -> None:
        system, folder = result._objects.file_system()
        path = f"{folder}/{result.folder('daily')}{name}"
        system.create_dir(path.rpartition("/")[0], recursive=True)
        with system.open_output_stream(path) as file:
            file.write(data)


class S3World(World):
    """A bucket of moto's."""

    def __init__(self, endpoint_url: str, bucket: str) -> None:
        self.bucket, self.endpoint_url = bucket, endpoint_url
        self.client = s3_client(endpoint_url)

    def objects(self, folder: str) -> Objects:
        return S3Objects(Place.parse(f"s3://{self.bucket}/{folder}", options(self.endpoint_url)))

    def all_keys(self) -> set[str]:
        return {one["Key"] for one in self.client.list_objects_v2(Bucket=self.bucket).get("Contents", ())}

    def put(self, key: str, data: bytes = b"precious") -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)


def committed(fingerprint: str, size: int = 1) -> CommittedStage:
    return CommittedStage("daily", fingerprint, rows=1, size_bytes=size, seconds=0.1, outputs={"daily": "daily"})


def folder_store(path: Path, stages: Path | None = None) -> StageStore:
    return StorePlace(store=path, stages=stages).open()


def table() -> bytes:
    """A Parquet file with one row."""
    out = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"k": [1]}), out)
    return bytes(out.getvalue().to_pybytes())


PART = table()


def compute(store: StageStore, world: World, fingerprint: str, name: str = "part-1.parquet") -> CommittedStage:
    """What a run does with a stage; the file is its task's."""
    with store.computing("daily", fingerprint):
        result = store.stage("daily", fingerprint)
        if (found := result.committed()) is not None:
            return found
        result.begin("daily")
        world.put_part(result, name, PART)
        result.wrote("daily", [(name, len(PART), 1)], "{}")
        return result.commit(committed(fingerprint))


def pins(store: StageStore, fingerprint: str) -> RunPins:
    pinned = {"daily": Pin(fingerprint=fingerprint, code="c", inputs={})}
    return RunPins(pipeline="p", store=store.name, stages=pinned)


def one_run(store: StageStore, world: World) -> CommittedStage:
    with store:
        store.pin(pins(store, FINGERPRINTS[0]))
        found = compute(store, world, FINGERPRINTS[0])
        assert store.stage("daily", FINGERPRINTS[0]).damage() == ""
        store.clean_up()
        return found
