"""The service as a process."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from penstock.emulator.testing import running_emulator
from penstock.registration import SERVICE_NAME, AcquireRequest, Consumer, Lease, open_registry
from penstock.registration.errors import ConsumerHeldError, RegistryAccessError
from penstock.rpc import ClientSecurity
from penstock.rpc.testing import service_process
from penstock.services.consumer_registry._settings import store_path
from penstock.services.consumer_registry._table import age, table

MODULE = "penstock.services.consumer_registry"


@pytest.fixture(scope="module")
def emulator():
    delay = timedelta(milliseconds=50)
    with running_emulator(consumer_creation_delay=delay, consumer_deletion_delay=delay) as running:
        running.client().create_stream(StreamName="flights", ShardCount=1)
        yield running


@pytest.fixture
def serve(emulator, tmp_path):
    def start(*arguments, **environment):
        environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "PENSTOCK_REGISTRY_REGION": "us-east-1",
            "PENSTOCK_REGISTRY_ENDPOINT_URL": emulator.endpoint_url,
            **environment,
        }
        store = f"sqlite://{tmp_path}/registry.db"
        return service_process(MODULE, ["serve", "--store", store, *arguments], environment)

    return start


def request(job_id="job", consumer_name="delays", **options):
    return AcquireRequest(stream_name="flights", consumer_name=consumer_name, job_id=job_id, **options)


def consumer_names(emulator):
    client = emulator.client()
    arn = client.describe_stream_summary(StreamName="flights")["StreamDescriptionSummary"]["StreamARN"]
    return [each["ConsumerName"] for each in client.list_stream_consumers(StreamARN=arn)["Consumers"]]


def eventually(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", MODULE, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_leases_are_given_refused_and_given_back(serve, emulator):
    """Between two clients of one service, with a consumer in Kinesis meanwhile."""
    with serve("--grace-seconds", "0") as service, open_registry(endpoint=service.address) as registry:
        lease = registry.acquire(request("first"))
        assert lease.registration_is_ours
        assert consumer_names(emulator) == ["delays"]
        with open_registry(endpoint=service.address) as other, pytest.raises(ConsumerHeldError, match="'first'"):
            other.acquire(request("second"))
        assert registry.release(lease) is True
        assert consumer_names(emulator) == []


def test_it_answers_health_checks_and_reflection(serve):
    """As operators and tools expect."""
    with serve() as service, grpc.insecure_channel(service.address) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        assert SERVICE_NAME in [each.name for each in answer.list_services_response.service]


def test_sigterm_drains_at_once_and_a_restart_loses_no_lease(serve, emulator):
    """A kept lease is still held by its job after the restart, under the same token, and others are still refused."""
    no_grace = ("--grace-seconds", "0")
    with serve(*no_grace) as service, open_registry(endpoint=service.address) as registry:
        lease = registry.acquire(request("first", time_to_live=timedelta(seconds=15)))
        lost = []
        registry.keep(lease, lost.append)
        began = time.monotonic()
        assert service.terminate() == 0
        # The heartbeat stream is open: were it not ended, the drain would take its ten seconds.
        assert time.monotonic() - began < 8
        port = service.address.rpartition(":")[2]
        with serve("--port", port, *no_grace) as restarted, open_registry(endpoint=restarted.address) as other:
            (consumer,) = other.list_consumers()
            assert consumer.lease.fencing_token == lease.fencing_token
            with pytest.raises(ConsumerHeldError):
                other.acquire(request("second"))
            left = consumer.lease.time_to_live_seconds
            # Its heartbeats arrive again.
            eventually(lambda: other.list_consumers()[0].lease.time_to_live_seconds > left)
            assert lost == []
            registry.release(lease)


def test_kill_9_loses_no_lease(serve):
    """What was answered is in the file."""
    with serve() as service, open_registry(endpoint=service.address) as registry:
        lease = registry.acquire(request("first"))
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait()
    with serve("--grace-seconds", "0") as service, open_registry(endpoint=service.address) as registry:
        again = registry.acquire(request("first"))
        assert again.consumer_arn == lease.consumer_arn
        assert again.fencing_token == lease.fencing_token + 1
        registry.release(again)


def test_the_sweeper_ends_what_a_dead_job_left(serve, emulator):
    """Without anybody asking, after time to live and grace period."""
    with serve("--grace-seconds", "0.2", "--sweep-seconds", "0.1") as service:
        with open_registry(endpoint=service.address) as registry:
            registry.acquire(request(consumer_name="orphan", time_to_live=timedelta(seconds=0.5)))
        assert "orphan" in consumer_names(emulator)
        eventually(lambda: "orphan" not in consumer_names(emulator))


def test_ls_prints_owner_age_and_token(serve):
    """As a table, or as JSON lines."""
    with serve("--grace-seconds", "0") as service, open_registry(endpoint=service.address) as registry:
        lease = registry.acquire(request("job-17"))
        listing = command("ls", "--endpoint", service.address)
        headings, row = listing.stdout.splitlines()
        assert headings.split()[:5] == ["STREAM", "CONSUMER", "OWNER", "AGE", "TOKEN"]
        assert row.split()[:3] == ["flights", "delays", "job-17"]
        assert row.split()[4] == str(lease.fencing_token)
        as_json = command("ls", "--json", PENSTOCK_REGISTRY_ENDPOINT=service.address)
        assert json.loads(as_json.stdout)["lease"]["job_id"] == "job-17"
        registry.release(lease)


def test_the_token_is_asked_for(serve):
    """From the environment on both sides; without it nothing is told."""
    with serve(PENSTOCK_REGISTRY_TOKEN="secret") as service:
        with open_registry(endpoint=service.address) as registry, pytest.raises(RegistryAccessError):
            registry.list_consumers()
        with open_registry(endpoint=service.address, security=ClientSecurity(token="secret")) as registry:
            registry.list_consumers()
        assert command("ls", "--endpoint", service.address).returncode == 1
        listing = command("ls", "--endpoint", service.address, PENSTOCK_REGISTRY_TOKEN="secret")
        assert listing.returncode == 0


def test_mutual_tls(serve, emulator, tmp_path):
    """A client without a certificate is not heard; one with it is."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, host in (("server", "127.0.0.1"), ("client", "client.example")):
        issued = authority.issue_cert(host)
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    flags = [
        "--certificate-file", str(tmp_path / "server.pem"),
        "--private-key-file", str(tmp_path / "server.key"),
        "--client-ca-file", str(tmp_path / "ca.pem"),
    ]  # fmt: skip
    with serve(*flags) as service:
        listing = command("ls", "--endpoint", service.address, "--ca-file", str(tmp_path / "ca.pem"))
        assert listing.returncode == 1
        client = [
            "--ca-file", str(tmp_path / "ca.pem"),
            "--certificate-file", str(tmp_path / "client.pem"),
            "--private-key-file", str(tmp_path / "client.key"),
        ]  # fmt: skip
        listing = command("ls", "--endpoint", service.address, *client)
        assert (listing.returncode, listing.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["serve"], "store"),
        (["serve", "--store", "redis://somewhere"], "store"),
        (["serve", "--store", "sqlite:///tmp/never.db", "--grace-seconds", "soon"], "grace_seconds"),
        (["serve", "--store", "sqlite:///tmp/never.db", "--host", "0.0.0.0"], "token"),
        (["ls"], "endpoint"),
    ],
)
def test_wrong_settings_end_it_with_a_word(arguments, word):
    """One line that names the setting, no traceback, exit code 2."""
    ended = command(*arguments)
    assert ended.returncode == 2
    assert word in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_store_that_cannot_be_used_ends_it_with_a_word(tmp_path):
    """At the start, not at the first call."""
    (tmp_path / "registry.db").write_text("no database " * 100)
    ended = command("serve", "--store", f"sqlite://{tmp_path}/registry.db", "--region", "eu-west-1")
    assert ended.returncode == 2
    assert "not a database" in ended.stderr


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///var/lib/registry.db", "/var/lib/registry.db"),
        ("sqlite:////var/lib/registry.db", "/var/lib/registry.db"),
        ("sqlite:registry.db", "registry.db"),
        ("sqlite:///with%20space.db", "/with space.db"),
    ],
)
def test_a_store_is_a_url(url, path):
    """Three slashes and an absolute path; a relative one without slashes."""
    assert store_path(url) == Path(path)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.9, "59s"), (61, "1m 1s"), (3600, "1h 0m"), (90_061, "1d 1h")]
)
def test_ages_are_for_people(seconds, text):
    """Two units at most."""
    assert age(seconds) == text


def test_a_consumer_that_nobody_holds_has_dashes():
    """Columns stay aligned."""
    idle = Consumer(
        stream_name="flights",
        consumer_name="delays",
        consumer_arn="arn",
        registration_is_ours=False,
        lease=None,
        age_seconds=5.0,
    )
    lease = Lease(
        stream_name="s",
        consumer_name="c",
        job_id="a-long-job-id",
        consumer_arn="arn",
        fencing_token=12,
        time_to_live_seconds=30.0,
        registration_is_ours=True,
    )
    held = Consumer(
        stream_name="s",
        consumer_name="c",
        consumer_arn="arn",
        registration_is_ours=True,
        lease=lease,
        age_seconds=3700.0,
    )
    assert table([idle, held]).splitlines() == [
        "STREAM   CONSUMER  OWNER          AGE    TOKEN  ENDS IN  REGISTRATION",
        "flights  delays    -              5s     -      -        not ours",
        "s        c         a-long-job-id  1h 1m  12     30s      ours",
    ]
