import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.efo_consumer import (
    DataLossError,
    ReaderConfig,
    ReaderHost,
    ReaderUnavailableError,
    ShardPosition,
    ShardRange,
    StreamPositions,
    read_ranges,
)
from penstock.emulator.testing import RunningEmulator
from penstock.rpc import ClientSecurity
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._reading.session.addresses import ReaderAddress, driver_settings, reader_address
from penstock.spark_plugin._reading.session.reachability import check_reachable, near_endpoints
from penstock.spark_plugin._reading.session.session import ReadingSession
from penstock.spark_plugin._reading.stream.partition import KinesisPartition, read_partition
from penstock.spark_plugin.errors import SparkPluginError
from penstock.spark_plugin.testing import endpoint_options

STANDALONE = {"spark.master": "spark://10.0.0.1:7077"}
RANGES = (ShardRange("flights", "s0", ShardPosition.after("1"), ShardPosition.after("2")),)


def found(settings: dict[str, str], environ: dict[str, str] | None = None, **options: object) -> ReaderAddress:
    parsed = KinesisOptions(stream_name=("flights",), **options)  # type: ignore[arg-type]  # fields
    return reader_address(parsed, settings=settings, environ=environ or {}, route=lambda host, _: f"to-{host}")


def hosts(settings: dict[str, str], environ: dict[str, str] | None = None, **options: object) -> tuple[str, str]:
    address = found(settings, environ, **options)
    return address.bind_host, address.host


@pytest.mark.parametrize("settings", [{}, {"spark.master": "local[*]", "spark.driver.host": "10.0.0.2"}])
def test_only_a_cluster_takes_the_reader_from_loopback(settings: dict[str, str]) -> None:
    """In local mode, and where nothing is known about the cluster, no other machine can come to the reader."""
    assert hosts(settings) == ("127.0.0.1", "127.0.0.1")


def test_on_a_cluster_the_reader_is_where_the_driver_is() -> None:
    """Executors reach the driver on `spark.driver.host`: they find the reader on it too."""
    assert hosts(STANDALONE | {"spark.driver.host": "driver.internal"}) == ("driver.internal", "driver.internal")
    behind = STANDALONE | {"spark.driver.host": "203.0.113.7", "spark.driver.bindAddress": "0.0.0.0"}
    assert hosts(behind) == ("0.0.0.0", "203.0.113.7")
    pod = {"spark.master": "k8s://https://api", "spark.driver.host": "driver-svc.default.svc"}
    assert hosts(pod, {"SPARK_DRIVER_BIND_ADDRESS": "10.1.2.3"}) == ("10.1.2.3", "driver-svc.default.svc")
    assert hosts(STANDALONE | {"spark.driver.host": "fd00::7"}) == ("[fd00::7]", "[fd00::7]")


def test_without_a_driver_host_it_is_the_address_that_leads_to_the_master() -> None:
    """Spark chooses an address of the machine then; the route to the master gives one that executors know."""
    assert hosts(STANDALONE) == ("to-10.0.0.1", "to-10.0.0.1")
    assert hosts(STANDALONE, {"SPARK_LOCAL_IP": "10.0.0.9"}) == ("10.0.0.9", "10.0.0.9")
    assert hosts({"spark.master": "yarn"}) == ("to-192.0.2.1", "to-192.0.2.1")
    assert hosts({"spark.master": "yarn"}, {"NM_HOST": "node7"}) == ("node7", "node7")


def test_what_the_user_says_goes_first() -> None:
    """The option, then the driver's environment; a wildcard is listened on, and tasks get an address."""
    cluster = STANDALONE | {"spark.driver.host": "10.0.0.2"}
    assert hosts(cluster, {"PENSTOCK_READER_HOST": "10.0.0.3"}) == ("10.0.0.3", "10.0.0.3")
    assert hosts(cluster, {"PENSTOCK_READER_HOST": "10.0.0.3"}, reader_host="a") == ("a", "a")
    assert hosts(cluster, reader_host="outside", reader_bind_address="0.0.0.0") == ("0.0.0.0", "outside")
    assert hosts(cluster, reader_host="0.0.0.0") == ("0.0.0.0", "10.0.0.2")
    assert found(cluster, reader_port=4711).port == 4711


def test_settings_are_read_from_the_command_line_of_the_driver() -> None:
    """As `spark-submit`, the session's builder, a properties file and the defaults give them; the nearest wins."""
    files = {
        Path("/conf/spark-defaults.conf"): "# ours\nspark.master yarn\nspark.driver.host = default.host\n",
        Path("/app.properties"): "spark.master=k8s\\://https\\://api\\:443\nspark.driver.host=svc\n",
    }

    def settings(*line: str) -> dict[str, str]:
        java = ["java", "-Dspark.driver.bindAddress=10.0.0.4", "org.apache.spark.deploy.SparkSubmit", *line]
        lines = [["python", "-m", "pyspark.daemon"], java, ["bash", "--master", "wrong"]]
        return driver_settings(command_lines=lines, environ={"SPARK_CONF_DIR": "/conf"}, read=files.__getitem__)

    own = {"spark.driver.bindAddress": "10.0.0.4"}
    shell = settings("--conf", "spark.master=spark://m:7077", "--conf", "spark.driver.host=10.0.0.2", "pyspark-shell")
    assert shell == own | {"spark.master": "spark://m:7077", "spark.driver.host": "10.0.0.2"}
    assert settings("--master", "local[2]") == own | {"spark.master": "local[2]", "spark.driver.host": "default.host"}
    pod = settings("--properties-file", "/app.properties")
    assert pod == own | {"spark.master": "k8s://https://api:443", "spark.driver.host": "svc"}
    assert driver_settings(command_lines=[["python", "app.py"]]) == {}


def partition(address: str, socket_path: Path | None = None) -> KinesisPartition:
    return KinesisPartition(
        address=address,
        sockets={address: socket_path} if socket_path else {},
        security=ClientSecurity(),
        session_id="s",
        ranges=RANGES,
        with_encryption_type=False,
        traceparent=None,
    )


def test_a_task_that_cannot_reach_the_reader_says_what_to_do() -> None:
    """A closed port is reported at once, with address, port, and the options that help."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(SparkPluginError) as told:
        list(read_partition(partition(closed)))
    assert told.value.code == "READER_UNREACHABLE"
    assert told.value.facts["address"] == closed
    assert all(part in str(told.value) for part in (closed, "refused", "readerHost", "readerEndpoint", "readerPort"))


def test_a_task_on_the_drivers_machine_takes_its_socket(tmp_path: Path) -> None:
    """While it is answered; when it has gone, the next task takes the address, and says so if that is gone, too."""
    path = tmp_path / "socket"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            assert near_endpoints({address: path}) == {}  # no listener yet
            listening.listen()
            assert near_endpoints({address: path, "other:1": tmp_path / "none"}) == {address: f"unix:{path}"}
        with pytest.raises(SparkPluginError) as told:
            list(read_partition(partition(address, path)))
        assert told.value.code == "READER_UNREACHABLE"
        assert told.value.facts["address"] == address
        assert near_endpoints({address: path}) == {}


def test_a_task_waits_for_a_silent_address_only_so_long() -> None:
    """Where packets vanish, as behind a firewall, the error comes within the time."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, socket.socket() as first, socket.socket() as more:
        address = server.getsockname()
        for one in (first, more):  # the queue is full then, and what comes next is not answered
            one.setblocking(False)
            one.connect_ex(address)
        with pytest.raises(SparkPluginError, match=r"READER_UNREACHABLE.*no answer within 0\.3 s"):
            check_reachable(f"127.0.0.1:{address[1]}", timeout_seconds=0.3)


def test_a_reader_that_goes_away_while_it_is_asked_is_told_in_the_same_words() -> None:
    """What took the connection and hung up; the next task looks again whether anybody is there."""

    def hang_up(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                server.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        thread = threading.Thread(target=hang_up, args=(server,), daemon=True)
        thread.start()
        with pytest.raises(SparkPluginError, match=r"READER_UNREACHABLE.*readerEndpoint") as told:
            list(read_partition(partition(address)))
        assert told.value.facts["address"] == address
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    with pytest.raises(SparkPluginError, match=r"READER_UNREACHABLE.*refused"):
        list(read_partition(partition(address)))


@pytest.fixture
def session(kinesis: RunningEmulator) -> Iterator[ReadingSession]:
    """A reader of a query's own, as its driver-side process opens it."""
    options = KinesisOptions.parse(endpoint_options(kinesis.endpoint_url, "nothing"), environ={})
    one = ReadingSession(options, StreamPositions({"nothing": {"s0": ShardPosition.after("1")}}))
    yield one
    one.close()


def test_other_users_of_the_host_are_kept_out(session: ReadingSession) -> None:
    """The reader listens on loopback alone, and refuses a call without its random token, or with another."""
    host, _, port = session.address.rpartition(":")
    assert host == "127.0.0.1"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", int(port)), 5).close()
    for security in (ClientSecurity(), ClientSecurity(token="guessed" * 5)):
        with pytest.raises(ReaderUnavailableError, match="UNAUTHENTICATED"):
            list(read_ranges(session.address, security, session.session_id, RANGES))
    assert session.security.token is not None
    assert len(session.security.token) > 40
    assert session.security.token not in repr(session.security)
    assert list(read_ranges(session.address, session.security, session.session_id, [])) == []


def test_an_address_of_another_machine_cannot_be_listened_on(kinesis: RunningEmulator) -> None:
    """The driver says which setting gave the address, and what to set instead."""
    options = endpoint_options(kinesis.endpoint_url, "nothing", readerHost="198.51.100.1")
    with pytest.raises(
        SparkPluginError, match=r"READER_ADDRESS_UNUSABLE.*198\.51\.100\.1:0 \(from readerHost\).*readerBindAddress"
    ):
        ReadingSession(KinesisOptions.parse(options, environ={}), StreamPositions({"nothing": {}}))


@pytest.mark.parametrize("fail", [True, False])
def test_a_reader_service_is_told_whether_losses_fail_the_query(fail: bool, kinesis: RunningEmulator) -> None:
    """Whatever the service itself is set to: a query and its tasks get what `failOnDataLoss` says, as without one."""
    stream = f"losses-{fail}".lower()
    client = kinesis.client()
    client.create_stream(StreamName=stream, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    client.put_record(StreamName=stream, PartitionKey="k", Data=b"left")
    gone = StreamPositions({stream: {"shardId-000000000077": ShardPosition.after("1")}})
    lost = [ShardRange(stream, "shardId-000000000077", ShardPosition.after("1"), ShardPosition.after("2"))]
    aws = aws_options(KinesisOptions.parse(endpoint_options(kinesis.endpoint_url, stream), environ={}))
    with ReaderHost(config=ReaderConfig(fail_on_data_loss=not fail), aws=aws) as service:
        options = endpoint_options(
            kinesis.endpoint_url,
            stream,
            readerEndpoint=service.address,
            serviceToken=service.security.token or "",
            failOnDataLoss=str(fail).lower(),
        )
        session = ReadingSession(KinesisOptions.parse(options, environ={}), gone)
        try:
            task = KinesisPartition(
                address=session.address,
                security=session.security,
                session_id=session.session_id,
                ranges=tuple(lost),
                with_encryption_type=False,
                traceparent=None,
                fail_on_data_loss=fail,
            )
            if fail:
                with pytest.raises(DataLossError, match="the shard is gone"):
                    session.reader.positions(gone, wait_seconds=10)
                with pytest.raises(DataLossError, match="the shard is gone"):
                    list(read_partition(task))
            else:
                assert session.reader.positions(gone, wait_seconds=10).positions != gone
                assert list(read_partition(task)) == []
        finally:
            session.close()
