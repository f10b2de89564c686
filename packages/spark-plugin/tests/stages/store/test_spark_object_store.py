"""A store on S3 and in a folder: what a killed driver leaves, what two drivers may do, and what is never removed."""

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from s3_servers import options, running_s3, running_wire, s3_client
from store_lives import (
    FINGERPRINTS,
    PART,
    FolderWorld,
    InMemory,
    Killed,
    Life,
    S3World,
    World,
    committed,
    compute,
    one_run,
    pins,
)

from penstock.aws import BackoffPolicy
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin._objects import S3Objects
from penstock.spark_plugin._places import Place
from penstock.spark_plugin._stages.store.object_claim import ObjectClaim
from penstock.spark_plugin._stages.store.store import StageStore
from penstock.spark_plugin.errors import (
    PipelineDefinitionError,
    PipelineError,
    StoreLostError,
    StoreUnusableError,
)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with running_s3() as endpoint_url:
        yield endpoint_url


@pytest.fixture
def bucket(s3: str) -> str:
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    s3_client(s3).create_bucket(Bucket=name)
    return name


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=["objects", "folder"])
def any_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World() if request.param == "objects" else FolderWorld(tmp_path)


def own(world: World) -> set[str]:
    return {f"store/{name}" for name in world.own}


def claim_of(store: StageStore) -> ObjectClaim:
    assert isinstance(store._claim, ObjectClaim)
    return store._claim


@contextmanager
def run_out() -> Iterator[None]:
    """The time of a claim has passed as soon as it is looked at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.spark_plugin._stages.store.object_claim._GRACE_SECONDS", -1000.0)
        yield


def test_a_driver_may_be_killed_at_any_write(any_world: World) -> None:
    """Before or after each of them: the next one finds the result whole or computes it, and nothing of the dead one is
    left; another driver's result, and files of others, stay."""
    world = any_world
    world.put("run/stages/photos/2024aaaa/beach.jpg")
    dies_at, ends = 1.0, False
    while not ends:
        name, life = f"run{dies_at}", Life(dies_at)
        store = world.store(name, life=life)
        try:
            one_run(store, world)
            ends = True
        except Killed:
            world.die(store)
        with run_out():
            assert one_run(world.store(name), world) == committed(FINGERPRINTS[0])
        left = {key for key in world.all_keys() if key.startswith(f"{name}/stages/daily/")}
        assert len(left) == 3, left  # both markers, and the rows of one attempt
        assert not any("/.locks/" in key for key in world.all_keys() if key.startswith(name))
        dies_at += 0.5
    assert dies_at > 4, life.writes  # the identity or the claim, the pins, what was begun, the result
    assert "run/stages/photos/2024aaaa/beach.jpg" in world.all_keys()


def test_a_store_on_s3_keeps_results_from_run_to_run(s3: str, bucket: str) -> None:
    """Over a real socket, by real conditional writes: it is computed once, used again, and forgotten."""
    world = S3World(s3, bucket)
    for _ in range(2):
        assert one_run(world.store(), world) == committed(FINGERPRINTS[0])
        assert len([key for key in world.all_keys() if key.endswith(".parquet")]) == 1
    with world.store() as store:
        store.forget()
    assert world.all_keys() == {"store/claim.json"}


def test_two_drivers_at_once(world: World) -> None:
    """The second is refused as soon as it has seen the first one renew its claim; after the release it has it."""
    with world.store(seconds=6.0) as first:
        with pytest.raises(PipelineError, match=r"STORE_IN_USE.* process \d+ on .*, last heard of \d s ago"):
            world.store(seconds=6.0).__enter__()
        token = first._claim.token
    with world.store() as second:
        assert second._claim.token == token + 1


def test_a_driver_that_was_taken_for_dead_cannot_write_pins_or_remove_results(world: World) -> None:
    """It has slept for longer than its claim: whoever has the higher number is believed."""
    asleep, told = world.store(), threading.Event()
    asleep.when_lost(lambda _: told.set())
    asleep.__enter__()
    asleep.pin(pins(asleep, FINGERPRINTS[0]))
    compute(asleep, world, FINGERPRINTS[0])
    world.die(asleep)
    with run_out(), world.store() as awake:
        awake.pin(pins(awake, FINGERPRINTS[1]))
        with pytest.raises(StoreLostError, match="another driver has taken it over"):
            asleep.pin(pins(asleep, FINGERPRINTS[0]))
        claim = claim_of(asleep)
        claim._released.clear()
        claim._seconds = 0.03
        claim._renew()  # its next heartbeat
        assert told.is_set()
        with pytest.raises(StoreLostError):
            asleep.clean_up()
        assert awake.pins() == pins(awake, FINGERPRINTS[1])


def test_a_claim_that_cannot_be_renewed_is_lost(s3: str, bucket: str) -> None:
    """Another driver may have it by then: the run gets an error, and writes nothing more after the store is back."""
    told: list[StoreLostError] = []
    lost = threading.Event()

    def note(error: StoreLostError) -> None:
        told.append(error)
        lost.set()

    with running_wire(s3) as wire:
        place = Place.parse(f"s3://{bucket}/store", options(wire.url))
        objects = S3Objects(place, backoff=BackoffPolicy(max_attempts=1))
        now = 0.0
        claim = ObjectClaim(
            objects,
            "claim.json",
            seconds=3,
            lost=note,
            clock=lambda: now,
        )
        assert claim.acquire()
        claim.check()
        wire.down = True
        now = 10.0
        assert lost.wait(60)
        wire.down = False
        with pytest.raises(StoreLostError, match="could not be renewed for 10 s") as caught:
            claim.check()
        assert told == [caught.value]
        claim.release()
        objects.close()


@pytest.mark.parametrize("fault", ["lose_answers", "refuse"])
def test_a_write_whose_answer_is_lost_is_known_to_be_ours(s3: str, bucket: str, fault: str) -> None:
    """It is sent again, and refused as there is one by then; what another has made is still told apart."""
    with running_wire(s3) as wire:
        objects = S3Objects(Place.parse(f"s3://{bucket}/x", options(wire.url)))
        setattr(wire, fault, 1)
        version = objects.write("key", b"mine", if_version=None)
        assert version is not None
        assert objects.write("key", b"another's", if_version=None) is None
        setattr(wire, fault, 1)
        newer = objects.write("key", b"newer", if_version=version)
        assert newer is not None
        assert objects.write("key", b"late", if_version=version) is None
        found = objects.read("key")
        assert found is not None
        assert (found.data, found.version) == (b"newer", newer)
        objects.close()


def test_late_files_are_never_read(any_world: World) -> None:
    """The marker of a driver that was taken for dead, and a file of a task of its: the first commit stands."""
    world = any_world
    with world.store() as store:
        late = store.stage("daily", FINGERPRINTS[0])
        late.begin("daily")
        late.wrote("daily", [("part-late.parquet", 1, 1)], "{}")
        first = compute(store, world, FINGERPRINTS[0])
        before = world.all_keys()
        assert late.commit(committed(FINGERPRINTS[0], size=2)) == first
        assert world.all_keys() == before
        world.put_part(late, "part-late.parquet", b"x")
        result = store.stage("daily", FINGERPRINTS[0])
        assert result.damage() == ""
        marker = result._marker()
        assert marker is not None
        assert [name for name, _, _ in marker.files["daily"]] == ["part-1.parquet"]


@pytest.mark.parametrize("is_used", [True, False])
def test_files_of_a_job_that_outlives_its_driver_go_with_the_next_run(any_world: World, *, is_used: bool) -> None:
    """The job writes after its attempt was removed: beside the committed result, or where no result is left."""
    world = any_world
    with world.store() as store:
        dead = store.stage("daily", FINGERPRINTS[1])
        dead.begin("daily")
        world.put_part(dead, "part-1.parquet", PART)
    used = FINGERPRINTS[1 if is_used else 0]
    for _ in range(2):
        with world.store() as store:
            store.pin(pins(store, used))
            compute(store, world, used)
            store.clean_up()
            left = {key for key in world.all_keys() if key.startswith("store/stages/daily/")}
            assert len(left) == 3, left
            assert {key.split("/")[3] for key in left} == {used}
        for name in ("part-2.parquet", "_SUCCESS", ".part-2.parquet.crc", "_temporary/0/task_1/part-0.parquet"):
            world.put_part(dead, name, PART)


def test_a_lock_of_a_driver_that_was_killed_before_it_began_is_removed(any_world: World) -> None:
    world = any_world
    with world.store() as store:
        claim = store._claim_of(store._stages, f".locks/daily.{FINGERPRINTS[1]}")
        assert claim.acquire()
        with world.store("other", stages="store/stages") as other:
            other.clean_up()
            assert any("/.locks/" in key for key in world.all_keys())
        if isinstance(claim, ObjectClaim):
            claim.abandon()
        else:
            claim.release()
        with run_out():
            store.clean_up()
        assert not any("/.locks/" in key for key in world.all_keys())


def test_a_marker_with_a_key_that_is_not_known_is_read(any_world: World) -> None:
    """A driver of another version that shares the results takes a marker that it cannot read for none."""
    world = any_world
    with world.store() as store:
        found = compute(store, world, FINGERPRINTS[0])
        (key,) = (key for key in world.all_keys() if key.endswith("_COMMITTED.json"))
        document = json.loads(world.data(key))
        world.put(key, json.dumps(document | {"of_a_later_version": 1}).encode())
        assert store.stage("daily", FINGERPRINTS[0]).committed() == found


def test_a_result_whose_files_are_not_all_there_is_damaged(any_world: World) -> None:
    world = any_world
    with world.store() as store:
        compute(store, world, FINGERPRINTS[0])
        result = store.stage("daily", FINGERPRINTS[0])
        (part,) = (key for key in world.all_keys() if key.endswith("part-1.parquet"))
        world.put(part, b".")
        assert result.damage() == f"part-1.parquet of 'daily' has 1 bytes of {len(PART)}"
        world.remove(part)
        assert result.damage() == "part-1.parquet of 'daily' is gone"


def test_results_that_somebody_uses_are_kept(any_world: World) -> None:
    """Those of the last run on this store or on one that shares its results, and one that is computed just now."""
    world = any_world
    with world.store("mine", stages="shared") as mine, world.store("other", stages="shared") as other:
        for one in FINGERPRINTS:
            compute(mine, world, one)
        mine.pin(pins(mine, FINGERPRINTS[0]))
        other.pin(pins(other, FINGERPRINTS[1]))

        def kept() -> list[bool]:
            return [mine.stage("daily", one).committed() is not None for one in FINGERPRINTS]

        with other.computing("daily", FINGERPRINTS[2]):
            assert mine.clean_up() == len(PART)
            assert kept() == [True, True, True, False]
        assert mine.clean_up() == len(PART)
        assert kept() == [True, True, False, False]
        assert mine.clean_up() == 0


@pytest.mark.parametrize("marker", [None, "{}", '{"stage": "photos", "fingerprint": "other"}', "[]", "not JSON"])
def test_what_is_not_ours_is_never_removed(any_world: World, marker: str | None) -> None:
    """A store in a bucket that holds other things, and a marker that somebody made up."""
    world = any_world
    theirs = ["stages/photos/2024/beach.jpg", "stages/x", "live/band/song", "live/band/checkpoint/song", "seams/dress"]
    theirs = [f"store/{one}" for one in theirs] + [f"store/stages/photos/2024/{'a' * 32}/photos/beach.jpg", "other/y"]
    for key in theirs:
        world.put(key)
    if marker is not None:
        world.put("store/stages/photos/2024/_COMMITTED.json", marker.encode())
    before = world.all_keys()
    with world.store() as store:
        assert store.clean_up() == 0
        store.forget()
        assert world.all_keys() - before <= own(world)
        assert before <= world.all_keys()


def test_only_what_has_our_names_goes_with_a_result(any_world: World) -> None:
    """A note that somebody has put beside the rows stays."""
    world = any_world
    with world.store() as store:
        compute(store, world, FINGERPRINTS[0])
        note = f"store/stages/daily/{FINGERPRINTS[0]}/NOTE.txt"
        world.put(note)
        assert store.clean_up() == len(PART)
        assert world.all_keys() == own(world) | {note}


def test_a_forgotten_store_starts_empty(any_world: World) -> None:
    """Checkpoints, notes of adopted ones, pins and results are removed; other files under `live` stay."""
    world = any_world
    checkpoint = "store/live/out/checkpoint"
    kept = "store/live/out/notes.txt"
    for key in ("metadata", "offsets/0", "offsets/10", "offsets/9", "commits/0", "state/0/0/1.delta"):
        world.put(f"{checkpoint}/{key}")
    world.put(kept)
    life = Life(-1)
    with world.store(life=life) as store:
        store.adopt("out", "file:///a")
        store.adopt("out", "file:///b")
        assert store.adopted("out") == "file:///b"
        compute(store, world, FINGERPRINTS[0])
        store.pin(pins(store, FINGERPRINTS[0]))
        store.forget()
        assert (store.adopted("out"), store.pins()) == (None, None)
        assert world.all_keys() == own(world) | {kept}
        if isinstance(world, FolderWorld):
            assert "live/out/checkpoint/" in life.writes  # at once
        else:
            assert [one.rpartition("/")[2] for one in life.writes if "/offsets/" in one] == ["0", "9", "10"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"store": "s3://Bucket/x"}, "the store's folder s3://Bucket/x cannot be used (write s3://BUCKET/FOLDER)"),
        (
            {"store": "s3://bucket/x", "store_options": {"regoin": "eu-west-1"}},
            "store_options has no option 'regoin': did you mean 'region'?",
        ),
        (
            {"store": "s3://bucket/x", "store_options": {"claimSeconds": "0"}},
            "store_options: claimSeconds='0' must be 1 to 3600 seconds",
        ),
        (
            {"store": "s3://bucket/x", "store_options": {"awsAccessKeyId": "x"}},
            "store_options: awsSecretAccessKey: is missing; awsAccessKeyId needs it",
        ),
        (
            {"store": "/x", "store_options": {"region": "eu-west-1"}},
            "store_options 'region' act on a store on s3://, and store='/x' is a folder: leave them out",
        ),
        (
            {"store": "s3://bucket/x", "stages": "/x"},
            "store='s3://bucket/x' and stages='/x': give two folders, two places on s3://, or two that the "
            "stage scheduler decides about",
        ),
    ],
)
def test_a_wrong_place_is_refused(given: dict[str, Any], message: str) -> None:
    """Before anything runs, with the name of what is wrong."""
    with pytest.raises((PipelineDefinitionError, StoreUnusableError)) as caught:
        Pipeline("p", **given)
    assert message in str(caught.value)


def test_a_service_without_conditions_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would let two drivers in."""

    def write(self: InMemory, key: str, data: bytes, *, if_version: str | None) -> str:
        self.held[self.place.prefix + key] = data, time.time()
        return str(hash(data))

    monkeypatch.setattr(InMemory, "write", write)
    with pytest.raises(StoreUnusableError, match="this service ignores If-None-Match"):
        world.store().__enter__()


def test_a_missing_bucket_is_reported(s3: str) -> None:
    pipeline = Pipeline("p", store="s3a://no-such-bucket-here/x/", store_options=options(s3))
    with pytest.raises(StoreUnusableError, match=r"s3://no-such-bucket-here/x cannot be used \(HeadBucket: 404"):
        pipeline.clean_up()


def test_secrets_are_not_shown() -> None:
    """Not by the pipeline's place, whose repr is in tracebacks and logs."""
    pipeline = Pipeline("p", store="s3://bucket/x", store_options={**options("http://127.0.0.1:1")})
    assert "s3://bucket/x" in repr(pipeline.place)
    assert "test" not in repr(pipeline.place)


def test_a_seam_lies_in_the_store(world: World) -> None:
    """On S3, until a run that does not resume; on a file system that writes on no condition it is refused."""
    assert Pipeline("p", store="s3a://bucket/x/").seam("a b") == "s3://bucket/x/seams/a_b.json"
    world.put("store/seams/a.json", b'{"version": 1, "arrivalMillis": 1}')
    for theirs in ("store/seams/b.json", "store/seams/dress"):
        world.put(theirs)
    with world.store() as store:
        store.forget()
    assert world.all_keys() == {"store/claim.json", "store/seams/b.json", "store/seams/dress"}
    with pytest.raises(PipelineDefinitionError) as caught:
        Pipeline("p", store="gs://bucket/x").seam("s")
    assert str(caught.value).endswith(
        " cannot be in gs://bucket/x, which has no conditional writes: give "
        "endingPosition and initialPosition one path of a file that the driver has whenever it runs, or s3://BUCKET/KEY"
    )
