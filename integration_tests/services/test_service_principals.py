"""Access control at real services: the file on its page, the tables of all contracts, leases, the audit log."""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from google.protobuf.message import Message

from integration_tests.security_tools import CONTRACTS, call_any, methods_of, raw_channel
from penstock.aws import AwsOptions, AwsSession
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as registry_pb
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as reader_pb
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as sink_pb
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as stages_pb
from penstock.registration import (
    AcquireRequest,
    BlockingConsumerRegistry,
    ConflictPolicy,
    ConsumerRegistryServicer,
    open_local_registry,
    open_registry,
    open_store,
)
from penstock.registration.errors import ConsumerHeldError, RegistrationError
from penstock.rpc import ClientSecurity, GrpcServer, ServerSecurity, ServerSettings
from penstock.rpc.testing import ServiceProcess, service_process

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/pages/operations/who-may-do-what.md").read_text()
DEADLINE = 30
TOKENS = {
    name: f"a-token-of-{name}-with-32-characters" for name in ("orders", "billing", "nightly", "operator", "console")
}
OK, DENIED = grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED


def page_file() -> str:
    """The file of the page, with the digests of these tests' tokens."""
    text = PAGE.partition("```toml\n")[2].partition("```")[0]
    for name, token in TOKENS.items():
        text = text.replace(f"DIGEST-OF-{name.upper()}", hashlib.sha256(token.encode()).hexdigest())
    assert "DIGEST" not in text
    return text


@dataclass(frozen=True)
class Team:
    """The services of a team, with the file of the page."""

    services: dict[str, ServiceProcess]
    folder: Path

    def security(self, who: str | None, *, certificate: str = "") -> ClientSecurity:
        name = certificate or ("billing" if who == "billing" else "other")
        return ClientSecurity(
            ca_file=self.folder / "ca.pem",
            certificate_file=self.folder / f"{name}.pem",
            private_key_file=self.folder / f"{name}.key",
            token=None if who is None else TOKENS[who],
        )

    def ask(
        self, who: str, service: str, method: str, *messages: Message, certificate: str = ""
    ) -> tuple[grpc.StatusCode, str]:
        """Call a method, with messages of its contract."""
        (found,) = [one for one in methods_of(service) if one.name == method]
        security = self.security(who, certificate=certificate)
        with raw_channel(self.services[service].address, security.channel_credentials()) as channel:
            contents = [one.SerializeToString() for one in messages]
            return call_any(channel, found, contents, token=TOKENS[who], timeout=DEADLINE)

    def audit(self, service: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / f"{service}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    folder = tmp_path_factory.mktemp("team")
    (folder / "principals.toml").write_text(page_file())
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, identity in (
        ("server", "127.0.0.1"),
        ("billing", "billing.jobs.example.com"),
        ("other", "x.jobs.example.com"),
    ):
        leaf = authority.issue_cert(identity)
        leaf.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        leaf.private_key_pem.write_to_path(folder / f"{name}.key")
    with ExitStack() as stack:
        emulator = stack.enter_context(running_emulator(tls=False))
        for stream in ("orders", "payments", "invoices"):
            emulator.client().create_stream(StreamName=stream, ShardCount=1)
        services = {}
        for name, (_, prefix) in CONTRACTS.items():
            settings = {
                "PRINCIPALS": folder / "principals.toml",
                "AUDIT_LOG": folder / f"{name}.jsonl",
                "CERTIFICATE_FILE": folder / "server.pem",
                "PRIVATE_KEY_FILE": folder / "server.key",
                "CLIENT_CA_FILE": folder / "ca.pem",
                "STORE": f"sqlite:///{folder / 'registry.db'}"
                if name == "consumer-registry"
                else folder / f"{name}.db",
            }
            if name != "stage-scheduler":
                settings |= {"ENDPOINT_URL": emulator.endpoint_url, "REGION": "us-east-1"}
            environment = {**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
            environment |= {f"PENSTOCK_{prefix}_{key}": str(value) for key, value in settings.items()}
            module = "penstock.services." + name.replace("-", "_")
            services[name] = stack.enter_context(service_process(module, ["serve"], environment))
        yield Team(services, folder)


def acquire(stream: str = "orders", consumer: str = "orders-job", job: str = "orders") -> registry_pb.AcquireRequest:
    return registry_pb.AcquireRequest(
        stream_name=stream,
        consumer_name=consumer,
        job_id=job,
        strategy=registry_pb.REGISTRATION_STRATEGY_LAZY,
        conflict_policy=registry_pb.CONFLICT_POLICY_REFUSE,
    )


def open_session(stream: str = "orders", session: str = "orders/orders/orders-job") -> reader_pb.OpenRequest:
    position = reader_pb.ShardPosition(type=reader_pb.POSITION_TYPE_TRIM_HORIZON)
    positions = reader_pb.StreamPositions(stream_name=stream, shards={"shardId-000000000000": position})
    return reader_pb.OpenRequest(
        session_id=session, positions=[positions], record_publisher=reader_pb.RECORD_PUBLISHER_TYPE_POLLING
    )


def hello(kind: str, destination: str) -> sink_pb.WriteRequest:
    return sink_pb.WriteRequest(hello=sink_pb.Hello(kind=kind, destination=destination))


def test_the_reading_job_of_the_page_reads_its_stream_and_no_other(team: Team) -> None:
    """By its consumer, under its name; neither by an ARN nor by another service does it get further."""
    assert team.ask("orders", "consumer-registry", "Acquire", acquire())[0] is OK
    assert team.ask("orders", "shard-reader", "Open", open_session())[0] is OK
    arn = "arn:aws:kinesis:us-east-1:000000000000:stream/payments"
    with_arn = acquire()
    with_arn.stream_arn = arn
    by_consumer = open_session()
    by_consumer.consumers.add(stream_name="orders", consumer_arn=f"{arn}/consumer/orders-job:1")
    refused = [
        ("consumer-registry", "Acquire", acquire(stream="payments"), "stream 'payments'"),
        ("consumer-registry", "Acquire", acquire(stream=arn), "stream 'payments'"),
        ("consumer-registry", "Acquire", with_arn, "stream 'payments'"),
        ("consumer-registry", "Acquire", acquire(consumer="billing-1"), "consumer 'billing-1'"),
        ("consumer-registry", "Acquire", acquire(job="billing"), "job 'billing'"),
        ("consumer-registry", "ListConsumers", registry_pb.ListConsumersRequest(), "all streams"),
        ("shard-reader", "Open", open_session(stream="payments"), "stream 'payments'"),
        ("shard-reader", "Open", open_session(session="billing/orders/billing-1"), "job 'billing/orders/billing-1'"),
        ("shard-reader", "Open", by_consumer, "stream 'payments'"),
        (
            "shard-reader",
            "ReadRange",
            reader_pb.ReadRangeRequest(
                session_id="orders/orders/orders-job",
                ranges=[reader_pb.ShardRange(stream_name="payments", shard_id="s")],
            ),
            "stream 'payments'",
        ),
        ("sink-gateway", "Write", hello("kinesis", "orders"), "call sink-gateway/Write"),
        ("stage-scheduler", "ListJobs", stages_pb.ListJobsRequest(), "call stage-scheduler/ListJobs"),
    ]
    for service, method, request, words in refused:
        code, details = team.ask("orders", service, method, request)
        assert code is DENIED, (service, method, details)
        assert details.startswith("principal 'orders' may not "), details
        assert words in details
        assert "of the file of principals" in details


def test_the_writing_job_of_the_page_writes_to_its_destinations_and_no_other(team: Team) -> None:
    """With its certificate beside the token."""
    assert team.ask("billing", "sink-gateway", "Write", hello("kinesis", "invoices"))[0] is OK
    arn = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"
    for request in (hello("kinesis", "orders"), hello("kinesis", arn), hello("dynamodb", "penstock-leases")):
        code, details = team.ask("billing", "sink-gateway", "Write", request)
        assert code is DENIED
        assert "may not use destination" in details
    code, details = team.ask("billing", "sink-gateway", "Write", hello("kinesis", "invoices"), certificate="other")
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert details == "principal 'billing' needs its certificate too"


def test_the_staged_job_of_the_page_schedules_its_own(team: Team) -> None:
    """Its claims too, which others do not end."""
    claim = stages_pb.ClaimRequest(store="results", fingerprint="f1", owner="driver#a-secret", lease_seconds=60)
    assert team.ask("nightly", "stage-scheduler", "Claim", claim)[0] is OK
    assert team.ask("nightly", "stage-scheduler", "GetJob", stages_pb.GetJobRequest(job_id="nightly-1"))[0] is (
        grpc.StatusCode.NOT_FOUND
    )
    assert team.ask("nightly", "stage-scheduler", "GetJob", stages_pb.GetJobRequest(job_id="other"))[0] is DENIED
    assert team.ask("orders", "stage-scheduler", "Claim", claim)[0] is DENIED
    released = stages_pb.ReleaseClaimRequest(store="results", fingerprint="f1", token=1)
    team.ask("operator", "stage-scheduler", "ReleaseClaim", released)
    again = stages_pb.RenewClaimRequest(store="results", fingerprint="f1", token=1)
    assert team.ask("operator", "stage-scheduler", "RenewClaim", again)[0] is grpc.StatusCode.ABORTED


def test_the_console_of_the_page_looks_and_changes_nothing(team: Team) -> None:
    """At all services."""
    looks = [
        ("consumer-registry", "ListConsumers", registry_pb.ListConsumersRequest()),
        ("shard-reader", "ListSessions", reader_pb.ListSessionsRequest(with_shards=True)),
        ("sink-gateway", "Stats", sink_pb.StatsRequest()),
        ("stage-scheduler", "ListJobs", stages_pb.ListJobsRequest()),
    ]
    for service, method, request in looks:
        assert team.ask("console", service, method, request)[0] is OK, service
    force = registry_pb.ForceReleaseRequest(stream_name="orders", consumer_name="orders-job")
    assert team.ask("console", "consumer-registry", "ForceRelease", force)[0] is DENIED
    assert team.ask("console", "sink-gateway", "Write", hello("kinesis", "invoices"))[0] is DENIED


@pytest.mark.parametrize("name", CONTRACTS)
def test_no_method_is_open_to_a_principal_without_rights(team: Team, name: str) -> None:
    """Every method of every service refuses, before it reads what would not be a message."""
    who = "nightly" if name != "stage-scheduler" else "orders"
    with raw_channel(team.services[name].address, team.security(who).channel_credentials()) as channel:
        for method in methods_of(name):
            code, details = call_any(channel, method, [b"\xff" * 100_000], token=TOKENS[who], timeout=DEADLINE)
            assert code is DENIED, method.full_name
            assert f"may not call {name}/{method.name}" in details
            assert TOKENS[who] not in details


def test_a_session_is_anothers_by_admin_alone(team: Team) -> None:
    """Two principals have two sessions with one id. The operator closes the first one by its full name."""
    session, services = "orders/orders/mine", team.services
    with raw_channel(services["shard-reader"].address, team.security("orders").channel_credentials()) as channel:
        answer = channel.unary_unary("/penstock.proto.shard_reader.v1.ShardReaderService/Open", None, None)(
            open_session(session=session).SerializeToString(),
            metadata=(("authorization", f"Bearer {TOKENS['orders']}"),),
            timeout=DEADLINE,
        )
    epoch = reader_pb.OpenResponse.FromString(answer).epoch
    stats = reader_pb.StatsRequest(session_id=session)
    # A principal with access to all jobs does not reach other principals' sessions by their id.
    assert team.ask("console", "shard-reader", "Stats", stats)[0] is grpc.StatusCode.NOT_FOUND
    close = reader_pb.CloseRequest(session_id=session, epoch=epoch)
    assert team.ask("operator", "shard-reader", "Close", close)[0] is OK
    assert team.ask("orders", "shard-reader", "Stats", stats)[0] is OK
    close.session_id = f"{session} (principal orders)"
    assert team.ask("operator", "shard-reader", "Close", close)[0] is OK
    assert team.ask("orders", "shard-reader", "Stats", stats)[0] is grpc.StatusCode.NOT_FOUND


def test_what_happened_is_in_the_audit_log(team: Team) -> None:
    """Each service logs changes and refusals, with principal, resource and address."""
    force = registry_pb.ForceReleaseRequest(stream_name="payments", consumer_name="nobody")
    team.ask("operator", "consumer-registry", "ForceRelease", force)
    assert team.ask("orders", "consumer-registry", "Acquire", acquire(stream="payments"))[0] is DENIED
    assert team.ask("orders", "shard-reader", "Open", open_session(session="orders/audited"))[0] is OK
    assert team.ask("billing", "sink-gateway", "Write", hello("kinesis", "invoices"))[0] is OK
    lines = {name: team.audit(name) for name in CONTRACTS}

    def found(service: str, **wanted: object) -> list[dict[str, object]]:
        return [line for line in lines[service] if wanted.items() <= line.items()]

    assert found("consumer-registry", event="force", who="operator", streams=["payments"], outcome="NOT_FOUND")
    assert found("consumer-registry", event="refused", who="orders", streams=["payments"], outcome="PERMISSION_DENIED")
    assert found("shard-reader", event="open session", who="orders", jobs=["orders/audited"], outcome="OK")
    assert found("sink-gateway", event="open destination", who="billing", destinations=["kinesis:invoices"])
    for name, own in lines.items():
        assert {line["from"] for line in own} <= {"127.0.0.1"}
        text = (team.folder / f"{name}.jsonl").read_text()
        assert not any(token in text for token in TOKENS.values())


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False) as running:
        running.client().create_stream(StreamName="orders", ShardCount=1)
        yield running


def test_a_lease_belongs_to_its_principal_also_after_a_restart(emulator: RunningEmulator, tmp_path: Path) -> None:
    """Another one of the same job name neither renews, releases nor takes it over; an admin does."""
    text = ""
    for name in ("orders", "billing", "operator"):
        digest = hashlib.sha256(TOKENS[name].encode()).hexdigest()
        admin = "true" if name == "operator" else "false"
        text += f'[[principal]]\nname = "{name}"\ntoken_sha256 = "{digest}"\nservices = "*"\nadmin = {admin}\n'
        text += 'streams = "*"\nconsumers = "*"\njobs = "*"\n'
    (tmp_path / "principals.toml").write_text(text)
    arguments = ["serve", "--store", f"sqlite:///{tmp_path / 'registry.db'}", "--principals"]
    arguments += [str(tmp_path / "principals.toml"), "--endpoint-url", emulator.endpoint_url, "--region", "us-east-1"]
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    request = AcquireRequest(stream_name="orders", consumer_name="shared", job_id="one")

    def registry(process: ServiceProcess, who: str) -> BlockingConsumerRegistry:
        return open_registry(endpoint=process.address, security=ClientSecurity(token=TOKENS[who]))

    module = "penstock.services.consumer_registry"
    lost: list[object] = []
    with ExitStack() as stack:
        process = stack.enter_context(service_process(module, arguments, environment))
        own = stack.enter_context(registry(process, "orders"))
        lease = own.acquire(request)
        assert lease.job_id == "one"
        own.keep(lease, lost.append)
        process.terminate()
        arguments += ["--port", process.address.rpartition(":")[2]]
        stack.enter_context(service_process(module, arguments, environment))
        other = stack.enter_context(registry(process, "billing"))
        with pytest.raises(ConsumerHeldError, match=r"one \(principal orders\)"):
            other.acquire(request)
        taking = AcquireRequest(
            stream_name="orders", consumer_name="shared", job_id="one", conflict_policy=ConflictPolicy.TAKE_OVER
        )
        with pytest.raises(RegistrationError, match="may not take over what others hold: write admin = true in line"):
            other.acquire(taking)
        assert other.release(lease) is False
        (consumer,) = own.list_consumers("orders")
        assert consumer.lease is not None
        assert (consumer.lease.job_id, consumer.lease.fencing_token) == ("one", lease.fencing_token)
        (consumer,) = other.list_consumers("orders")
        assert consumer.lease is not None
        assert consumer.lease.job_id == "one (principal orders)"
        assert lost == []
        with raw_channel(process.address) as channel:
            call = channel.unary_unary(
                "/penstock.proto.consumer_registry.v1.ConsumerRegistryService/ForceRelease", None, None
            )
            force = registry_pb.ForceReleaseRequest(stream_name="orders", consumer_name="shared").SerializeToString()
            metadata = (("authorization", f"Bearer {TOKENS['operator']}"),)
            ended = registry_pb.ForceReleaseResponse.FromString(call(force, metadata=metadata, timeout=DEADLINE))
        assert ended.lease.job_id == "one (principal orders)"
        mine = other.acquire(request)
        assert other.release(mine) is True


async def test_a_lease_is_kept_when_the_heartbeats_of_an_old_token_end(
    emulator: RunningEmulator, tmp_path: Path
) -> None:
    """Heartbeats continue in a new stream with the new token."""
    server_file, client_file = tmp_path / "server", tmp_path / "client"
    server_file.write_text(TOKENS["orders"])
    client_file.write_text(TOKENS["orders"])
    options = AwsOptions(
        region="us-east-1", endpoint_url=emulator.endpoint_url, access_key_id="test", secret_access_key="test"
    )
    local = open_local_registry(
        AwsSession(options), store=open_store(f"sqlite:///{tmp_path}/r.db", AwsSession(options))
    )
    servicer = ConsumerRegistryServicer(local)
    heartbeats = 0

    async def count(request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        nonlocal heartbeats
        heartbeats += 1
        async for answer in ConsumerRegistryServicer.Heartbeat(servicer, request_iterator, context):
            yield answer

    servicer.Heartbeat = count  # type: ignore[method-assign]  # counted
    settings = ServerSettings(security=ServerSecurity(token_file=server_file), recheck_seconds=0.1, drain_seconds=1)
    server = GrpcServer(settings, register=[servicer.add_to], service_names=[servicer.contract.service.full_name])
    lost: list[object] = []
    async with server:

        def use() -> None:
            security = ClientSecurity(token_file=client_file)
            with open_registry(endpoint=server.address, security=security) as registry:
                request = AcquireRequest(
                    stream_name="orders", consumer_name="kept", job_id="one", time_to_live=timedelta(seconds=6)
                )
                lease = registry.acquire(request)
                registry.keep(lease, lost.append)
                until = time.monotonic() + DEADLINE
                while heartbeats == 0:
                    assert time.monotonic() < until
                    time.sleep(0.05)
                for file in (client_file, server_file):
                    new = file.with_suffix(".new")
                    new.write_text(TOKENS["billing"])
                    new.replace(file)
                while heartbeats < 2:
                    assert time.monotonic() < until, "the heartbeats did not continue"
                    time.sleep(0.05)
                (consumer,) = registry.list_consumers("orders")
                assert consumer.lease is not None
                assert consumer.lease.fencing_token == lease.fencing_token
                registry.release(lease)

        await asyncio.to_thread(use)
    await local.close()
    assert lost == []
