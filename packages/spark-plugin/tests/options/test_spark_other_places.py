"""A service that would read or write streams of another region, account or endpoint than the query's is refused."""

import argparse
import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from penstock.async_sink.errors import LocationMismatchError as OtherSink
from penstock.efo_consumer import LocationMismatchError as OtherReader
from penstock.efo_consumer import RemoteShardReader, StreamConsumer
from penstock.efo_consumer._reader.api import OpenRequest
from penstock.emulator.testing import RunningEmulator, kinesis_client, running_emulator
from penstock.registration.errors import RegistrationError as OtherRegistry
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.initial_positions import initial_positions
from penstock.spark_plugin._reading.session.session import ReadingSession
from penstock.spark_plugin._writing.writer import KinesisBatchWriter

registry_service = pytest.importorskip("penstock.services.consumer_registry._serve")
reader_service = pytest.importorskip("penstock.services.shard_reader._serve")
sink_service = pytest.importorskip("penstock.services.sink_gateway._serve")

STREAM = "orders"
KEYS = {"awsAccessKeyId": "test", "awsSecretAccessKey": "test"}
HERE, THERE = "us-east-1", "eu-west-1"


@contextmanager
def serving(make: Callable[[], AbstractAsyncContextManager[Any]]) -> Iterator[str]:
    """A service on a thread of its own; its address."""
    ready: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with make() as server:
            ready.set_result((server.address, asyncio.get_running_loop(), stop))
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run, name="service")
    thread.start()
    try:
        address, loop, stop = ready.result(30)
        yield address
        loop.call_soon_threadsafe(stop.set)
    finally:
        thread.join(30)


class Services:
    """The three services of one place, each begun when it is first asked for."""

    def __init__(self, exits: ExitStack, folder: Path, *arguments: str) -> None:
        self._exits, self._folder, self._arguments = exits, folder, arguments

    def _begin(self, settings: Any, serve: Callable[[Any], Any], *more: str) -> str:
        parser = argparse.ArgumentParser()
        settings.add_arguments(parser)
        parsed = settings.from_arguments(parser.parse_args([*self._arguments, *more]), {})
        return self._exits.enter_context(serving(lambda: serve(parsed)))

    def reader(self) -> str:
        return self._begin(reader_service.ReaderSettings, reader_service.reader_server)

    def registry(self) -> str:
        store = f"sqlite:///{self._folder / 'leases.db'}"
        return self._begin(
            registry_service.RegistrySettings, registry_service.registry_server, "--store", store, "--grace-seconds=0"
        )

    def sink(self) -> str:
        return self._begin(sink_service.GatewaySettings, sink_service.gateway_server)


@pytest.fixture(scope="module")
def here() -> Iterator[RunningEmulator]:
    with running_emulator(region=HERE) as emulator:
        yield with_stream(emulator)


@pytest.fixture(scope="module")
def there() -> Iterator[RunningEmulator]:
    with running_emulator(region=THERE, account_id="111111111111") as emulator:
        yield with_stream(emulator)


def with_stream(emulator: RunningEmulator) -> RunningEmulator:
    client = emulator.client()
    client.create_stream(StreamName=STREAM, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=STREAM, WaiterConfig={"Delay": 1})
    client.put_record(StreamName=STREAM, Data=b"of " + emulator.config.region.encode(), PartitionKey="k")
    return emulator


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")


@pytest.fixture
def make_services(tmp_path: Path) -> Iterator[Callable[..., Services]]:
    with ExitStack() as exits:
        yield lambda emulator, *arguments: Services(
            exits, tmp_path, "--endpoint-url", emulator.endpoint_url, *arguments
        )


def options_of(emulator: RunningEmulator, **options: str) -> KinesisOptions:
    given = {"streamName": STREAM, "region": emulator.config.region, "endpointUrl": emulator.endpoint_url}
    given |= {"initialPosition": "TRIM_HORIZON", **options}
    return KinesisOptions.parse({name: text for name, text in given.items() if text}, environ={})


def read(options: KinesisOptions) -> None:
    session = ReadingSession(options, initial_positions(options))
    session.close()


def write(options: KinesisOptions) -> None:
    writer = KinesisBatchWriter(options, StructType().add("data", BinaryType()).add("partitionKey", StringType()))
    writer.write(iter([pa.RecordBatch.from_pydict({"data": [b"new"], "partitionKey": ["k"]})]))


def use(services: Services, emulator: RunningEmulator, home: str, **options: str) -> None:
    """Read or write by one of the services."""
    match home:
        case "reader":
            read(options_of(emulator, readerEndpoint=services.reader(), **options))
        case "registry":
            efo = {"recordPublisher": "efo", "efoConsumerName": "app"}
            read(options_of(emulator, registryEndpoint=services.registry(), **efo, **options))
        case _:
            write(options_of(emulator, sinkEndpoint=services.sink(), **options))


HOMES = [("reader", OtherReader), ("registry", OtherRegistry), ("sink", OtherSink)]


def consumers(emulator: RunningEmulator) -> list[Any]:
    client = emulator.client()
    arn = client.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
    return list(client.list_stream_consumers(StreamARN=arn)["Consumers"])


def records(emulator: RunningEmulator) -> int:
    client = emulator.client()
    iterator = client.get_shard_iterator(
        StreamName=STREAM, ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    return len(client.get_records(ShardIterator=iterator)["Records"])


@pytest.mark.parametrize(("home", "kind"), HOMES, ids=[home for home, _ in HOMES])
def test_a_service_of_another_endpoint_is_refused(
    make_services: Callable[..., Services], here: RunningEmulator, there: RunningEmulator, home: str, kind: type
) -> None:
    """The error names both endpoints and what to set; nothing is registered, read or written there."""
    with pytest.raises(kind) as raised:
        use(make_services(there, "--region", THERE), here, home)
    told = str(raised.value)
    assert here.endpoint_url in told
    assert there.endpoint_url in told
    assert "endpointUrl" in told
    assert f"{home}Endpoint" in told
    assert (consumers(there), records(there)) == ([], 1)


@pytest.mark.parametrize(("home", "kind"), HOMES, ids=[home for home, _ in HOMES])
def test_a_service_of_another_region_is_refused(
    make_services: Callable[..., Services], here: RunningEmulator, there: RunningEmulator, home: str, kind: type
) -> None:
    """Also where both know the endpoint by the same name; the error names both regions."""
    services = make_services(there, "--region", THERE, "--endpoint-aliases", here.endpoint_url)
    with pytest.raises(kind, match=f"region of .* is {THERE} .*, the caller's is {HERE}"):
        use(services, here, home)
    assert (consumers(there), records(there)) == ([], 1)


@pytest.mark.parametrize(("home", "kind"), HOMES[:2], ids=[home for home, _ in HOMES[:2]])
def test_a_service_of_another_account_is_refused(
    make_services: Callable[..., Services],
    here: RunningEmulator,
    there: RunningEmulator,
    home: str,
    kind: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service looks up the ARN of the stream that the name means to it, before anything is done."""
    monkeypatch.setenv("AWS_ACCOUNT_ID", here.config.account_id)
    services = make_services(there, "--region", HERE, "--endpoint-aliases", here.endpoint_url)
    with pytest.raises(kind, match=f"account of .* is {there.config.account_id} .*, the caller's is 000000000000"):
        use(services, here, home)
    assert (consumers(there), records(there)) == ([], 1)


@pytest.mark.parametrize("home", [home for home, _ in HOMES])
def test_a_region_of_the_environment_is_compared_too(
    make_services: Callable[..., Services],
    here: RunningEmulator,
    there: RunningEmulator,
    home: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the option `region` it is the one by which the query would read without the service."""
    monkeypatch.setenv("AWS_REGION", HERE)
    services = make_services(there, "--region", THERE, "--endpoint-aliases", here.endpoint_url)
    with pytest.raises(dict(HOMES)[home], match=f"the caller's is {HERE}"):
        use(services, here, home, region="")


@pytest.mark.parametrize("home", [home for home, _ in HOMES])
def test_a_service_of_the_same_place_is_used(
    make_services: Callable[..., Services], here: RunningEmulator, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also under another name of its loopback address, and where the account is known."""
    monkeypatch.setenv("AWS_ACCOUNT_ID", here.config.account_id)
    before = records(here)
    use(make_services(here, "--region", HERE), here, home)
    other_name = here.endpoint_url.replace("127.0.0.1", "localhost")
    assert other_name != here.endpoint_url
    use(make_services(here, "--region", HERE), here, home, endpointUrl=other_name)
    assert records(here) == before + (2 if home == "sink" else 0)


def test_a_caller_without_a_region_takes_the_gateway_s(
    make_services: Callable[..., Services], here: RunningEmulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An executor needs no AWS settings at all to write through a gateway."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    before = records(here)
    address = make_services(here, "--region", HERE).sink()
    write(KinesisOptions.parse({"streamName": STREAM, "sinkEndpoint": address}, environ={}))
    assert records(here) == before + 1


def test_a_consumer_of_another_region_s_stream_is_refused(
    make_services: Callable[..., Services], here: RunningEmulator
) -> None:
    """The ARN of the consumer that was leased says which stream is meant, also where the caller says nothing else."""
    address = make_services(here, "--region", HERE).reader()
    arn = f"arn:aws:kinesis:{THERE}:000000000000:stream/{STREAM}/consumer/app:1"
    positions = initial_positions(options_of(here))
    request = OpenRequest(session_id="q", positions=positions, consumers=(StreamConsumer(STREAM, arn),))

    async def open_it() -> None:
        reader = RemoteShardReader(address)
        try:
            await reader.open(request)
        finally:
            await reader.aclose()

    with pytest.raises(OtherReader) as caught:
        asyncio.run(open_it())
    assert (caught.value.fact, caught.value.found, caught.value.caller) == ("region", HERE, THERE)
    assert caught.value.consumer_arn == arn
    # The option `region` is the reader's already: setting it would not help.
    assert f"start the shard reader with --region {THERE}" in str(caught.value)
    assert "set 'region'" not in str(caught.value)


def test_variables_alone_lead_fan_out_and_a_reader_service_to_the_emulator(
    make_services: Callable[..., Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the README sets them, after the emulator was started: its ARNs have the region of the clients."""
    with running_emulator() as emulator:
        monkeypatch.setenv("AWS_REGION", THERE)
        monkeypatch.setenv("AWS_ENDPOINT_URL", emulator.endpoint_url)
        kinesis_client(emulator.endpoint_url, region=THERE).create_stream(StreamName=STREAM, ShardCount=1)
        services = make_services(emulator)
        homes = {"readerEndpoint": services.reader(), "registryEndpoint": services.registry()}
        options = {"streamName": STREAM, "recordPublisher": "efo", "efoConsumerName": "app", **homes}
        read(KinesisOptions.parse({**options, "initialPosition": "TRIM_HORIZON"}, environ={}))


@pytest.mark.parametrize(("home", "kind"), HOMES, ids=[home for home, _ in HOMES])
def test_both_cures_of_another_region_help(
    make_services: Callable[..., Services], here: RunningEmulator, home: str, kind: type
) -> None:
    """The message names both settings; the caller's region may be changed, or the service started with another one."""
    wrong = make_services(here, "--region", THERE)
    with pytest.raises(kind) as caught:
        use(wrong, here, home)
    facts = getattr(caught.value, "facts", None) or vars(caught.value)
    told = str(caught.value)
    for words in (f"{THERE} (--region, else AWS_REGION)", f"{HERE} (option 'region', else AWS_REGION)"):
        assert words in told
    assert f"set 'region' to {facts['found']}" in told
    use(wrong, here, home, region=facts["found"])
    assert f"--region {facts['caller']}" in told
    use(make_services(here, "--region", facts["caller"]), here, home)


def test_every_reader_of_several_is_compared(
    make_services: Callable[..., Services], here: RunningEmulator, there: RunningEmulator
) -> None:
    """Also one to which no shard falls: it gives the ranges of those that are gone."""
    right, wrong = make_services(here, "--region", HERE), make_services(there, "--region", THERE)
    endpoints = [*(right.reader() for _ in range(4)), wrong.reader()]
    with pytest.raises(OtherReader, match=re.escape(there.endpoint_url)) as caught:
        read(options_of(here, readerEndpoint=",".join(endpoints)))
    assert caught.value.address == endpoints[-1]
    assert f"another one for the shard reader at {endpoints[-1]} than for its caller" in str(caught.value)
