"""Stores of stages on objects whose user may be killed at any of its writes."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from s3_servers import options, s3_client

from penstock.spark_plugin._stages.store.object_store import ObjectStore
from penstock.spark_plugin._stages.store.pins import Pin, RunPins
from penstock.spark_plugin._stages.store.store import CommittedStage
from penstock.spark_plugin._storage.objects import Found, Listed, Objects, S3Objects
from penstock.spark_plugin._storage.places import Place

FINGERPRINTS = [character * 24 for character in "abcd"]


class Killed(BaseException):
    """Stands for kill -9: nobody catches it, and nothing is tidied up."""


@dataclass
class Life:
    """Of one driver, over all that it writes."""

    dies_at: float
    """As it sends write n, counted from 1; with a half: when that was carried out."""
    writes: list[str] = field(default_factory=list)
    is_over: bool = False

    def reach(self, point: float) -> None:
        self.is_over |= point == self.dies_at
        if self.is_over:
            raise Killed


@dataclass
class Mortal:
    """Objects whose user may be killed at one of its writes."""

    objects: Objects
    life: Life

    @property
    def conditional(self) -> bool:
        return self.objects.conditional

    @property
    def place(self) -> Place:
        return self.objects.place

    def get(self, key: str) -> Found | None:
        self.life.reach(0)
        return self.objects.get(key)

    def list(self, prefix: str) -> Iterator[Listed]:
        self.life.reach(0)
        return self.objects.list(prefix)

    def create(self, key: str, data: bytes) -> str | None:
        version: str | None = self._write(key, lambda: self.objects.create(key, data))
        return version

    def replace(self, key: str, data: bytes, version: str) -> str | None:
        replaced: str | None = self._write(key, lambda: self.objects.replace(key, data, version))
        return replaced

    def delete(self, keys: Sequence[str]) -> None:
        self._write(" ".join(keys), lambda: self.objects.delete(keys))

    def close(self) -> None:
        self.objects.close()

    def _write(self, what: str, call: Callable[[], Any]) -> Any:
        self.life.writes.append(what)
        number = len(self.life.writes)
        self.life.reach(number)
        answer = call()
        self.life.reach(number + 0.5)
        return answer


@dataclass
class InMemory:
    """Objects as S3 has them, by whole keys."""

    place: Place
    held: dict[str, tuple[bytes, float]]
    conditional: bool = True

    def get(self, key: str) -> Found | None:
        found = self.held.get(self.place.prefix + key)
        return Found(found[0], str(hash(found[0])), time.time() - found[1]) if found is not None else None

    def list(self, prefix: str) -> Iterator[Listed]:
        first = self.place.prefix
        for key in sorted(self.held):
            if key.startswith(first + prefix):
                yield Listed(key.removeprefix(first), len(self.held[key][0]))

    def create(self, key: str, data: bytes) -> str | None:
        kept = self.held.setdefault(self.place.prefix + key, (data, time.time()))
        return str(hash(data)) if kept[0] == data else None

    def replace(self, key: str, data: bytes, version: str) -> str | None:
        found = self.get(key)
        if found is None or found.version != version:
            return None
        self.held[self.place.prefix + key] = data, time.time()
        return str(hash(data))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.held.pop(self.place.prefix + key, None)

    def close(self) -> None:
        """Nothing to close."""


class World:
    """A bucket, and stores on it as drivers open them."""

    bucket = "bucket"

    def __init__(self) -> None:
        self.held: dict[str, tuple[bytes, float]] = {}

    def objects(self, folder: str) -> Objects:
        return InMemory(Place.parse(f"s3://{self.bucket}/{folder}"), self.held)

    def store(
        self, name: str = "store", *, stages: str = "", life: Life | None = None, seconds: float = 30.0
    ) -> ObjectStore:
        life = life or Life(-1)
        objects, results = (Mortal(self.objects(folder), life) for folder in (name, stages or f"{name}/stages"))
        return ObjectStore(objects, results, claim_seconds=seconds)

    def key_of(self, place: Place) -> str:
        return place.url.partition(self.bucket)[2].strip("/")

    def all_keys(self) -> set[str]:
        return set(self.held)

    def put(self, key: str, data: bytes = b"precious") -> None:
        self.held[key] = data, time.time()


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


def committed(fingerprint: str, size: int = 100) -> CommittedStage:
    return CommittedStage("daily", fingerprint, rows=1, size_bytes=size, seconds=0.1, outputs={"daily": "daily"})


def compute(store: ObjectStore, world: World, fingerprint: str, name: str = "part-1.parquet") -> CommittedStage:
    """What a run does with a stage; the file is its task's."""
    with store.computing("daily", fingerprint):
        result = store.stage("daily", fingerprint)
        if (found := result.committed()) is not None:
            return found
        result.begin("daily")
        world.put(f"{world.key_of(result._place(result._attempt, 'daily'))}/{name}", b"." * 100)
        result.wrote("daily", [(name, 100, 1)], "{}")
        return result.commit(committed(fingerprint))


def pins(store: ObjectStore, fingerprint: str) -> RunPins:
    pinned = {"daily": Pin(fingerprint=fingerprint, code="c", inputs={})}
    return RunPins(pipeline="p", store=store.name, stages=pinned)


def one_run(store: ObjectStore, world: World) -> CommittedStage:
    with store:
        store.pin(pins(store, FINGERPRINTS[0]))
        found = compute(store, world, FINGERPRINTS[0])
        assert store.stage("daily", FINGERPRINTS[0]).damage(found) == ""
        store.clean_up()
        return found
