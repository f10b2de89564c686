"""Everything around the job: Kinesis, its streams, the services, and the folders."""

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from opentelemetry import propagate

from penstock.demo._children import Child
from penstock.demo._settings import DemoSettings
from penstock.demo._telemetry import telemetry_environment
from penstock.demo.errors import DemoError

FLIGHTS_SHARDS = 4
DELAYS_SHARDS = 2
_READY_SECONDS = 60.0
_OWN = {
    "run": {"ca", "counts", "job", "registry", "spans", "store"},
    "logs": {"consumer-registry", "emulator", "producer", "shard-reader", "spark-driver"},
}
"""What the demo writes into its folders: names up to the first dot."""


@dataclass(frozen=True)
class Folders:
    """Where things are."""

    results: Path

    @property
    def run(self) -> Path:
        """Of this run alone: stages, checkpoints, counts. Kept on request."""
        return self.results / "run"

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.results / "logs"

    @property
    def spans(self) -> Path:
        """One file of spans per process."""
        return self.run / "spans"

    @property
    def counts(self) -> Path:
        """The table of counts."""
        return self.run / "counts.sqlite"

    @property
    def store(self) -> Path:
        """Stages and checkpoints."""
        return self.run / "store"

    def is_committed(self, batch_id: int) -> bool:
        """Whether Spark has committed a micro-batch of the live stage: only then its delays are written."""
        return any(self.store.glob(f"live/*/checkpoint/commits/{batch_id}"))

    def clear(self) -> None:
        """Start from nothing: remove what an earlier run left.

        Raises:
            DemoError: one of the folders holds what no demo has written; nothing is cleared then.
        """
        for folder in (self.run, self.logs):
            entries = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
            others = [name for name in entries if name.partition(".")[0] not in _OWN[folder.name]]
            if others:
                reason = f"holds what the demo did not write ({others[0]}), and would be cleared"
                raise DemoError(f"{folder} {reason}: name another place by --folder")
        for folder in (self.run, self.logs):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)


@dataclass
class World:
    """What the job needs, and is ended when it is done."""

    folders: Folders
    environment: dict[str, str]
    """Variables for every child process."""
    aws_options: dict[str, str]
    kinesis: Any
    """A boto3 client."""
    flights_stream: str
    delays_stream: str
    reader_endpoint: str | None = None
    registry_endpoint: str | None = None
    children: ExitStack = field(default_factory=ExitStack)

    def start(self, name: str, module: str, *arguments: str) -> Child:
        """Start a Python module as a child. It is ended with the world, in reverse order of starting."""
        child = Child(name, module, arguments, log=self.folders.logs / f"{name}.log", environment=self.environment)
        self.children.callback(child.end)
        return child

    def join_trace(self) -> None:
        """Let the children that are started from now on be part of the current trace."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        self.environment |= {name.upper(): value for name, value in carrier.items()}

    def split_a_shard(self) -> str:
        """Split the first open shard of the flights in the middle, and name it."""
        shards = self.kinesis.list_shards(StreamName=self.flights_stream)["Shards"]
        shard = next(shard for shard in shards if "EndingSequenceNumber" not in shard["SequenceNumberRange"])
        low, high = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
        self.kinesis.split_shard(
            StreamName=self.flights_stream,
            ShardToSplit=shard["ShardId"],
            NewStartingHashKey=str((low + high + 1) // 2),
        )
        return str(shard["ShardId"])


def _client(options: Mapping[str, str], environment: Mapping[str, str]) -> Any:
    session = boto3.Session(
        aws_access_key_id=environment.get("AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=environment.get("AWS_SECRET_ACCESS_KEY"),
        region_name=options["region"],
    )
    return session.client(
        "kinesis",
        endpoint_url=options.get("endpointUrl"),
        verify=options.get("caBundle"),
        config=Config(retries={"mode": "adaptive", "total_max_attempts": 10}),
    )


def _embedded_kinesis(world: World) -> None:
    emulator = world.start(
        "emulator", "penstock.emulator", "--exit-with-parent", "--ca-file", str(world.folders.run / "ca.pem")
    )
    world.aws_options["endpointUrl"] = emulator.wait_for("tls_endpoint_url", _READY_SECONDS)
    world.aws_options["caBundle"] = emulator.wait_for("ca_file", _READY_SECONDS)


def _services(world: World) -> None:
    where = ["--region", world.aws_options["region"]]
    for flag, option in (("--endpoint-url", "endpointUrl"), ("--ca-bundle", "caBundle")):
        if option in world.aws_options:
            where += [flag, world.aws_options[option]]
    store = f"sqlite:///{(world.folders.run / 'registry.sqlite').resolve()}"
    registry = world.start(
        "consumer-registry", "penstock.services.consumer_registry", "serve", "--store", store, *where
    )
    reader = world.start("shard-reader", "penstock.services.shard_reader", "serve", *where)
    world.registry_endpoint = registry.wait_for("address", _READY_SECONDS)
    world.reader_endpoint = reader.wait_for("address", _READY_SECONDS)


@contextmanager
def open_world(settings: DemoSettings) -> Iterator[World]:
    """Start Kinesis and the services, create the streams; end everything on exit, whatever happened."""
    folders = Folders(settings.folder.resolve())
    folders.clear()
    environment = telemetry_environment(folders.spans)
    if settings.endpoint_url is None:
        # The embedded Kinesis accepts every key, so the user's keys are not used.
        environment |= {
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demo",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        environment |= {"AWS_SESSION_TOKEN": ""}
    options = {"region": settings.region}
    if settings.endpoint_url is not None:
        options["endpointUrl"] = settings.endpoint_url
    suffix = "" if settings.endpoint_url is None else f"-{secrets.token_hex(4)}"
    world = World(folders, environment, options, None, f"flights{suffix}", f"delays{suffix}")
    with world.children:
        if settings.endpoint_url is None:
            _embedded_kinesis(world)
        world.kinesis = _client(options, environment if settings.endpoint_url is None else os.environ)
        try:
            _create_streams(world, to_be_deleted=settings.endpoint_url is not None)
        except (BotoCoreError, ClientError) as error:
            raise DemoError(f"the streams cannot be made: {error}") from error
        if settings.services:
            _services(world)
        yield world
    if not (settings.keep or settings.kill_driver):
        shutil.rmtree(folders.run, ignore_errors=True)


def _create_streams(world: World, *, to_be_deleted: bool) -> None:
    names = (world.flights_stream, world.delays_stream)
    for name, shards in zip(names, (FLIGHTS_SHARDS, DELAYS_SHARDS), strict=True):
        world.kinesis.create_stream(StreamName=name, ShardCount=shards)
        if to_be_deleted:
            world.children.callback(_delete_stream, world.kinesis, name)
    for name in names:
        world.kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})


def _delete_stream(kinesis: Any, name: str) -> None:
    # One that is still being made cannot be deleted.
    kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
    kinesis.delete_stream(StreamName=name, EnforceConsumerDeletion=True)
