"""Rights of callers: a file of principals, checked at each call over real connections."""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as registry_pb
from penstock.proto.consumer_registry.v1 import consumer_registry_pb2_grpc as registry_grpc
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as pb
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2_grpc as pb_grpc
from penstock.rpc import (
    ClientSecurity,
    GrpcServer,
    RpcOptionError,
    ServerSecurity,
    ServerSettings,
    open_aio_channel,
)
from penstock.rpc._security.principals import PrincipalsFile, parse_principals

DEADLINE = 30
NAME = "penstock.proto.stage_scheduler.v1.StageSchedulerService"
ORDERS, BILLING, ADMIN = (
    "a-token-of-the-orders-job-with-32-characters",
    "a-token-of-the-billing-job-with-32-characters",
    "a-token-of-the-admin-with-32-characters",
)


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


FILE = f"""# Rights of the callers of these tests.
[[principal]]
name = "orders"
token_sha256 = "{sha256(ORDERS)}"
services = ["stage-scheduler"]
jobs = ["orders", "shared-*"]

[[principal]]
name = "billing"
token_sha256 = ["{sha256(BILLING)}"]
services = ["stage-*"]
methods = ["Report", "Watch"]
jobs = ["billing", "shared-*"]

[[principal]]
name = "admin"
token_sha256 = ["{sha256(ADMIN)}"]
services = ["*"]
jobs = ["*"]
admin = true
"""


class Servicer(pb_grpc.StageSchedulerServiceServicer):
    """Says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.watched = 0
        self.more = asyncio.Event()
        self.begun = asyncio.Event()
        self.unwatched = asyncio.Event()

    async def GetJob(self, request: pb.GetJobRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.GetJobResponse:
        self.asked.append(request.job_id)
        if request.job_id == "waits":
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.unwatched.set()
        return pb.GetJobResponse(job=pb.Job(job_id=request.job_id, name="x" * 100))

    async def Report(self, request: pb.ReportRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.ReportResponse:
        self.asked.append(request.job_id)
        if request.error:
            await context.abort(grpc.StatusCode.NOT_FOUND, "the job is unknown")
        return pb.ReportResponse(job=pb.Job(job_id=request.job_id))

    async def Submit(self, request: pb.SubmitRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.SubmitResponse:
        return pb.SubmitResponse(job=pb.Job(job_id=request.job_id))

    async def ListJobs(
        self, request: pb.ListJobsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListJobsResponse:
        return pb.ListJobsResponse()

    async def Claim(self, request: pb.ClaimRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.ClaimResponse:
        self.asked.append(request.store)
        return pb.ClaimResponse()

    async def Watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchResponse]:
        self.watched += 1
        try:
            while request.job_id == "shared-flood":
                yield pb.WatchResponse(job=pb.Job(name="x" * 1_000_000))
            yield pb.WatchResponse(job=pb.Job(version=1))
            await self.more.wait()
            yield pb.WatchResponse(job=pb.Job(version=2))
        finally:
            self.watched -= 1
            self.unwatched.set()


def put(file: Path, text: str) -> None:
    """As mounted files change: at once."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


@asynccontextmanager
async def serving(file: Path, **options: Any) -> AsyncIterator[tuple[GrpcServer, Servicer]]:
    servicer = Servicer()  # type: ignore[abstract]  # the other calls are not made
    security = options.pop("security", None) or ServerSecurity(principals=file)
    server = GrpcServer(
        ServerSettings(security=security, drain_seconds=0.5, **options),
        register=[lambda server: pb_grpc.add_StageSchedulerServiceServicer_to_server(servicer, server)],
        service_names=[NAME],
    )
    async with server:
        yield server, servicer


@asynccontextmanager
async def calling(address: str, token: str | None) -> AsyncIterator["pb_grpc.StageSchedulerServiceAsyncStub"]:
    async with open_aio_channel(address, ClientSecurity(token=token)) as channel:
        yield pb_grpc.StageSchedulerServiceStub(channel)


async def refusal(call: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code(), raised.value.details() or ""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "principals.toml").write_text(FILE)
    return tmp_path / "principals.toml"


async def test_a_principal_does_what_its_lists_say_and_nothing_else(file: Path) -> None:
    """A refusal says who may not do what, and which line would let it; the service is not asked."""
    async with serving(file) as (server, servicer), calling(server.address, ORDERS) as stub:
        assert (await stub.GetJob(pb.GetJobRequest(job_id="orders"), timeout=DEADLINE)).job.job_id == "orders"
        await stub.GetJob(pb.GetJobRequest(job_id="orders/2026"), timeout=DEADLINE)
        code, details = await refusal(stub.GetJob(pb.GetJobRequest(job_id="billing"), timeout=DEADLINE))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert details == (
            "principal 'orders' may not use job 'billing': add 'billing' to jobs in line 6 of the file of principals"
        )
        assert (await refusal(stub.GetJob(pb.GetJobRequest(job_id="orders-2"), timeout=DEADLINE)))[0] is code
        code, details = await refusal(stub.ListJobs(pb.ListJobsRequest(), timeout=DEADLINE))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "may not use all jobs at once, as this call does: add '*' to jobs in line 6" in details
        code, details = await refusal(stub.Claim(pb.ClaimRequest(store="/stages", fingerprint="f"), timeout=DEADLINE))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert details.endswith("write stores = ['/stages'] below line 2 of the file of principals")
        assert servicer.asked == ["orders", "orders/2026"]


async def test_methods_are_refused_before_their_message_is_read(file: Path) -> None:
    """The message is not valid, and would be refused if it were read."""
    async with serving(file) as (server, _), open_aio_channel(server.address, ClientSecurity(token=BILLING)) as channel:
        code, details = await refusal(channel.unary_unary(f"/{NAME}/GetJob", None, None)(b"\xff\xff", timeout=DEADLINE))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "principal 'billing' may not call stage-scheduler/GetJob: add 'GetJob' to methods in line 12" in details
        code, _ = await refusal(channel.unary_unary(f"/{NAME}/Report", None, None)(b"\xff\xff", timeout=DEADLINE))
        assert code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "token", [None, "a-token-that-is-unknown-with-32-characters", sha256(ORDERS)], ids=["none", "wrong", "digest"]
)
async def test_callers_that_are_not_principals_are_refused(file: Path, token: str | None) -> None:
    """Nor by what the file says of a token."""
    async with serving(file) as (server, _), calling(server.address, token) as stub:
        code, details = await refusal(stub.GetJob(pb.GetJobRequest(job_id="orders"), timeout=DEADLINE))
        assert (code, details) == (grpc.StatusCode.UNAUTHENTICATED, "the bearer token is missing or wrong")


RIGHTS_TO_LEASES = 'services = ["*"]\nstreams = ["*"]\nconsumers = ["*"]'


@asynccontextmanager
async def leasing(file: Path, token: str) -> AsyncIterator["registry_grpc.ConsumerRegistryServiceAsyncStub"]:
    put(file, re.sub(r"services = .*", RIGHTS_TO_LEASES, FILE).replace('methods = ["Report", "Watch"]', ""))
    leases = Leases()  # type: ignore[abstract]  # the other calls are not made
    server = GrpcServer(
        ServerSettings(security=ServerSecurity(principals=file), drain_seconds=0.5),
        register=[lambda server: registry_grpc.add_ConsumerRegistryServiceServicer_to_server(leases, server)],
        service_names=["penstock.proto.consumer_registry.v1.ConsumerRegistryService"],
    )
    async with server, open_aio_channel(server.address, ClientSecurity(token=token)) as channel:
        yield registry_grpc.ConsumerRegistryServiceStub(channel)


class Leases(registry_grpc.ConsumerRegistryServiceServicer):
    """Leases everything. The name of the lease's consumer says by which id the service knows the job."""

    async def Acquire(self, request: registry_pb.AcquireRequest, context: Any) -> registry_pb.AcquireResponse:
        return registry_pb.AcquireResponse(lease=registry_pb.Lease(job_id=request.job_id, consumer_name=request.job_id))

    async def ForceRelease(self, request: Any, context: Any) -> registry_pb.ForceReleaseResponse:
        return registry_pb.ForceReleaseResponse()

    async def CollectGarbage(self, request: Any, context: Any) -> registry_pb.CollectGarbageResponse:
        return registry_pb.CollectGarbageResponse()


def acquire(job_id: str, policy: int = 0) -> registry_pb.AcquireRequest:
    return registry_pb.AcquireRequest(
        stream_name="s",
        consumer_name="c",
        job_id=job_id,
        conflict_policy=policy,  # type: ignore[arg-type]  # a number of the enumeration
    )


async def test_calls_that_act_on_other_callers_need_admin_rights(file: Path) -> None:
    """The contract says which methods and which values of enumerations do. A dry run needs no admin rights."""
    force = registry_pb.ForceReleaseRequest(stream_name="s", consumer_name="c")
    collect, look = registry_pb.CollectGarbageRequest(), registry_pb.CollectGarbageRequest(dry_run=True)
    async with leasing(file, ORDERS) as stub:
        calls: list[Awaitable[object]] = [
            stub.ForceRelease(force, timeout=DEADLINE),
            stub.CollectGarbage(collect, timeout=DEADLINE),
            stub.Acquire(acquire("orders", registry_pb.CONFLICT_POLICY_TAKE_OVER), timeout=DEADLINE),
        ]
        for call in calls:
            code, details = await refusal(call)
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "write admin = true below line 2 of the file of principals" in details
        await stub.CollectGarbage(look, timeout=DEADLINE)
    async with leasing(file, ADMIN) as stub:
        await stub.ForceRelease(force, timeout=DEADLINE)
        await stub.CollectGarbage(collect, timeout=DEADLINE)
        await stub.Acquire(acquire("orders", registry_pb.CONFLICT_POLICY_TAKE_OVER), timeout=DEADLINE)


async def test_two_principals_use_one_id_for_leases_of_their_own(file: Path) -> None:
    """An admin can name the lease of another principal."""

    async def known_as(token: str, job_id: str) -> tuple[str, str]:
        async with leasing(file, token) as stub:
            lease = (await stub.Acquire(acquire(job_id), timeout=DEADLINE)).lease
        return lease.job_id, lease.consumer_name

    of_orders, of_billing = await known_as(ORDERS, "shared-1"), await known_as(BILLING, "shared-1")
    made_up = await known_as(BILLING, "shared-1 (principal orders)")
    assert [of_orders[0], of_billing[0], made_up[0]] == ["shared-1", "shared-1", "shared-1 (principal orders)"]
    assert len({of_orders[1], of_billing[1], made_up[1]}) == 3
    assert await known_as(ADMIN, of_orders[1]) == (of_orders[1], of_orders[1])


async def test_a_certificate_identifies_its_principal(tmp_path: Path) -> None:
    """Alone, or together with a token where a principal has both."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("server", "orders", "billing", "other"):
        names = ("127.0.0.1",) if name == "server" else (f"{name}.jobs.example",)
        leaf = authority.issue_cert(*names)
        leaf.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        leaf.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    file = tmp_path / "principals.toml"
    file.write_text(f"""
[[principal]]
name = "orders"
certificate = "orders.jobs.example"
services = ["*"]
jobs = ["orders"]
[[principal]]
name = "billing"
certificate = "billing.jobs.example"
token_sha256 = "{sha256(BILLING)}"
services = ["*"]
jobs = ["billing"]
""")
    security = ServerSecurity(
        certificate_file=tmp_path / "server.pem",
        private_key_file=tmp_path / "server.key",
        client_ca_file=tmp_path / "ca.pem",
        principals=file,
    )

    async def ask(name: str, token: str | None, job: str) -> str:
        client = ClientSecurity(
            ca_file=tmp_path / "ca.pem",
            certificate_file=tmp_path / f"{name}.pem",
            private_key_file=tmp_path / f"{name}.key",
            token=token,
        )
        async with open_aio_channel(server.address, client) as channel:
            try:
                stub = pb_grpc.StageSchedulerServiceStub(channel)
                await stub.GetJob(pb.GetJobRequest(job_id=job), timeout=DEADLINE)
            except grpc.aio.AioRpcError as error:
                return error.code().name
        return "OK"

    async with serving(file, security=security) as (server, _):
        assert await ask("orders", None, "orders") == "OK"
        assert await ask("orders", None, "billing") == "PERMISSION_DENIED"
        assert await ask("other", None, "orders") == "UNAUTHENTICATED"
        assert await ask("orders", "a-token-that-is-unknown-with-32-characters", "orders") == "UNAUTHENTICATED"
        assert await ask("billing", None, "billing") == "UNAUTHENTICATED"
        assert await ask("orders", BILLING, "billing") == "UNAUTHENTICATED"
        assert await ask("billing", BILLING, "billing") == "OK"
    with pytest.raises(RpcOptionError, match="set client_ca_file"):
        ServerSecurity(principals=file).check_files()


async def test_a_changed_file_counts_from_the_next_call_on(file: Path) -> None:
    """Rights that are given and taken, and principals that go."""
    async with serving(file) as (server, _), calling(server.address, ORDERS) as stub:
        request = pb.GetJobRequest(job_id="parcels")
        assert (await refusal(stub.GetJob(request, timeout=DEADLINE)))[0] is grpc.StatusCode.PERMISSION_DENIED
        put(file, FILE.replace('jobs = ["orders"', 'jobs = ["parcels"'))
        await stub.GetJob(request, timeout=DEADLINE)
        put(file, FILE.replace(sha256(ORDERS), sha256("another")))
        assert (await refusal(stub.GetJob(request, timeout=DEADLINE)))[0] is grpc.StatusCode.UNAUTHENTICATED
        put(file, "# empty")
        assert (await refusal(stub.GetJob(request, timeout=DEADLINE)))[0] is grpc.StatusCode.UNAUTHENTICATED


def test_principals_outlive_their_file_for_a_minute(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As tokens do: files are replaced in steps, but a file that stays unreadable counts as empty."""
    now = 100.0
    principals = PrincipalsFile(file, clock=lambda: now)
    file.write_text(FILE + "\nhalf a line")
    assert principals.knows(ORDERS) is None
    assert "the principals stay as they were, for 60 s at most: principals: the file of principals is not TOML" in (
        caplog.text
    )
    now += 61
    assert principals.knows(ORDERS) == "the bearer token is missing or wrong"
    file.write_text(FILE)
    assert principals.knows(ORDERS) is None


def test_a_principal_ends_at_its_moment(file: Path) -> None:
    """Like a token."""
    file.write_text(FILE.replace('name = "orders"', 'name = "orders"\nexpires = 2001-01-01T00:00:00Z'))
    principals = PrincipalsFile(file)
    assert principals.knows(ORDERS) == "the bearer token has expired"
    assert principals.find(ORDERS, []) == "the bearer token has expired"
    assert principals.by_token(ORDERS) is None


async def test_a_token_that_can_be_guessed_is_refused_when_it_is_sent(file: Path) -> None:
    """The file has its digest alone, and cannot tell."""
    put(file, FILE.replace(sha256(ORDERS), sha256("s3cret")))
    async with serving(file) as (server, _), grpc.aio.insecure_channel(server.address) as channel:
        call = channel.unary_unary(f"/{NAME}/GetJob", None, None)
        code, details = await refusal(call(b"", metadata=[("authorization", "Bearer s3cret")], timeout=DEADLINE))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "fewer than 32 characters: give 'orders' another one" in details


D1, D2 = sha256("one"), sha256("two")


@pytest.mark.parametrize(
    ("text", "details"),
    [
        ("", "holds no principal"),
        ("principal = 1", "a line \\[\\[principal\\]\\] of its own"),
        (f'principal = [{{name = "a", token_sha256 = "{D1}"}}]', "of its own"),
        ("[[principals]]", "unknown 'principals'"),
        ("[[principal]]\nname = 'a b'", "line 2: a principal needs a name"),
        ("[[principal]]\nname = 'a'", "line 1: principal 'a' proves itself by nothing"),
        ("[[principal]]\nname = 'a'\ntoken_sha256 = 's3cret'", "line 3: .*64 lower-case"),
        (f"[[principal]]\nname = 'a'\ntoken_sha256 = '{D1}'\nstream = ['a']", "line 4: .*did you mean 'streams'"),
        (f"[[principal]]\nname = 'a'\ntoken_sha256 = '{D1}'\nstreams = [1]", "line 4: streams must be"),
        (f"[[principal]]\nname = 'a'\ntoken_sha256 = '{D1}'\nadmin = 'yes'", "line 4: admin must be"),
        (f"[[principal]]\nname = 'a'\ntoken_sha256 = '{D1}'\ncalls_at_once = 0", "line 4: 'calls_at_once' must"),
        (f"[[principal]]\nname = 'a'\ntoken_sha256 = '{D1}'\ncalls_at_once = 1.5", "line 4: 'calls_at_once' must"),
        (f"[[principal]]\nname = 'a'\ntoken_sha256 = '{D1}'\ncalls_at_once = true", "line 4: 'calls_at_once' must"),
        (f"[[principal]]\nname = 'a'\ntoken_sha256 = '{D1}'\nexpires = 2030-01-01", "line 4: expires must be"),
        (
            f"[[principal]]\nname = 'a'\ntoken_sha256 = '{D1}'\n[[principal]]\nname = 'a'\ntoken_sha256 = '{D2}'",
            "lines 1 and 4: two principals have the same name",
        ),
        (
            f"[[principal]]\nname = 'a'\ntoken_sha256 = '{D1}'\n[[principal]]\nname = 'b'\ntoken_sha256 = '{D1}'",
            "lines 1 and 4: two principals have the same token",
        ),
    ],
)
def test_a_file_that_is_none_of_principals_is_refused_by_its_line(tmp_path: Path, text: str, details: str) -> None:
    """And nothing of a token, or of what someone took for its digest, is shown."""
    file = tmp_path / "principals.toml"
    file.write_text(text)
    with pytest.raises(RpcOptionError, match=details) as raised:
        ServerSecurity(principals=file).check_files()
    assert "s3cret" not in str(raised.value)
    assert D1 not in str(raised.value)


def test_principals_and_tokens_are_given_one_or_the_other(file: Path) -> None:
    """A token may do all: beside principals it would be a way around them."""
    with pytest.raises(RpcOptionError, match="is given together with a token"):
        ServerSecurity(principals=file, token="a-token-that-may-do-all-with-32-characters")
    with pytest.raises(RpcOptionError, match="does not know what its calls act on"):
        GrpcServer(ServerSettings(security=ServerSecurity(principals=file)), register=[], service_names=["no.contract"])


def test_what_is_not_listed_is_not_allowed() -> None:
    """Services, and resources of each kind; methods are those that need no admin."""
    (one,) = parse_principals(f"[[principal]]\nname = 'a'\ntoken_sha256 = '{D1}'".encode())
    assert one.may_call("shard-reader", "Open") is not None
    for kind in ("streams", "consumers", "destinations", "jobs", "stores"):
        assert one.may_use(kind, "anything") is not None
    (one,) = parse_principals(f"[[principal]]\nname = 'a'\ntoken_sha256 = '{D1}'\nservices = '*'".encode())
    assert one.may_call("shard-reader", "Open") is None
    assert one.may_call("consumer-registry", "ForceRelease", needs_admin=True) is not None


async def test_calls_over_their_number_are_refused_until_one_has_ended(file: Path) -> None:
    """Streams and others together, of this principal alone; what is refused is not read, and takes no room."""
    put(file, FILE.replace('jobs = ["orders"', 'calls_at_once = 2\njobs = ["orders"'))
    async with serving(file) as (server, servicer), calling(server.address, ORDERS) as stub:
        watching = [stub.Watch(pb.WatchRequest(job_id="orders"), timeout=DEADLINE) for _ in range(2)]
        for one in watching:
            await one.read()
        request = pb.GetJobRequest(job_id="orders")
        for _ in range(3):
            code, details = await refusal(stub.GetJob(request, timeout=DEADLINE))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert details == (
                "principal 'orders' has 2 calls open, as many as it may: end one, or raise calls_at_once in line 6 of "
                "the file of principals"
            )
        async with open_aio_channel(server.address, ClientSecurity(token=ORDERS)) as channel:
            code, _ = await refusal(channel.unary_unary(f"/{NAME}/GetJob", None, None)(b"\xff\xff", timeout=DEADLINE))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            health = health_pb2_grpc.HealthStub(channel)
            await health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE)
        async with calling(server.address, ADMIN) as other:
            await other.GetJob(request, timeout=DEADLINE)
        assert servicer.asked == ["orders"]
        watching[0].cancel()
        async with asyncio.timeout(DEADLINE):
            await servicer.unwatched.wait()
        for _ in range(3):
            await stub.GetJob(request, timeout=DEADLINE)
            await refusal(stub.GetJob(pb.GetJobRequest(job_id="billing"), timeout=DEADLINE))
            await refusal(stub.Report(pb.ReportRequest(job_id="orders", stage_id="s", error="gone"), timeout=DEADLINE))


async def test_a_service_has_a_number_for_callers_of_whom_the_file_says_none(file: Path, tmp_path: Path) -> None:
    """Also for all callers with a token, without a file of principals."""
    request = pb.GetJobRequest(job_id="orders")
    put(file, FILE.replace('jobs = ["billing"', 'calls_at_once = 2\njobs = ["billing"'))
    async with serving(file, calls_at_once=1) as (server, _):
        for token, most in ((ORDERS, 1), (BILLING, 2)):
            async with calling(server.address, token) as stub:
                watching = [stub.Watch(pb.WatchRequest(job_id="shared-1"), timeout=DEADLINE) for _ in range(most)]
                for one in watching:
                    await one.read()
                code, details = await refusal(
                    stub.Report(pb.ReportRequest(job_id="shared-1", stage_id="s"), timeout=DEADLINE)
                )
                assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
                where = "of the service" if token == ORDERS else "in line 13 of the file of principals"
                assert details.endswith(
                    f"has {most} calls open, as many as it may: end one, or raise calls_at_once {where}"
                )
    security = ServerSecurity(token="a-token-that-may-do-all-with-32-characters")
    async with (
        serving(tmp_path, security=security, calls_at_once=1) as (server, servicer),
        calling(server.address, "a-token-that-may-do-all-with-32-characters") as stub,
    ):
        watching = [stub.Watch(pb.WatchRequest(job_id="one"), timeout=DEADLINE)]
        await watching[0].read()
        code, details = await refusal(stub.GetJob(request, timeout=DEADLINE))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details.startswith("caller 'token' has 1 calls open")
        watching[0].cancel()
        async with asyncio.timeout(DEADLINE):
            await servicer.unwatched.wait()
        await stub.GetJob(request, timeout=DEADLINE)
    with pytest.raises(RpcOptionError, match="calls_at_once: must be at least 1"):
        ServerSettings(calls_at_once=0)


async def test_reflection_and_health_know_principals(file: Path) -> None:
    """Health checks are open; what the contract is, principals may ask."""
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    async with serving(file) as (server, _):
        for token in (None, ORDERS):
            async with open_aio_channel(server.address, ClientSecurity(token=token)) as channel:
                await channel.unary_unary("/grpc.health.v1.Health/Check", None, None)(b"", timeout=DEADLINE)
                call = channel.stream_stream(path, None, None)(iter([b"\x3a\x00"]), timeout=DEADLINE)
                if token is None:
                    assert (await refusal(call.read()))[0] is grpc.StatusCode.UNAUTHENTICATED
                else:
                    assert await call.read()


# Audit and streams whose callers are taken back.


def lines_of(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_refusals_and_changes_are_written_down(file: Path, tmp_path: Path) -> None:
    """Who, what, from where, and how it ended; what only looks is not there, and neither is a token."""
    audit = tmp_path / "audit.jsonl"
    async with serving(file, audit_log=str(audit)) as (server, _):
        async with calling(server.address, ORDERS) as stub:
            await stub.GetJob(pb.GetJobRequest(job_id="orders"), timeout=DEADLINE)
            await stub.Report(pb.ReportRequest(job_id="orders", stage_id="s"), timeout=DEADLINE)
            await refusal(stub.Report(pb.ReportRequest(job_id="orders", stage_id="s", error="gone"), timeout=DEADLINE))
            await refusal(stub.GetJob(pb.GetJobRequest(job_id="billing"), timeout=DEADLINE))
            await refusal(stub.Submit(pb.SubmitRequest(job_id="billing", graph=pb.JobGraph()), timeout=DEADLINE))
        async with calling(server.address, "a-token-that-is-unknown-with-32-characters") as stub:
            await refusal(stub.GetJob(pb.GetJobRequest(job_id="orders"), timeout=DEADLINE))
    lines = lines_of(audit)
    assert [(line["event"], line["who"], line["outcome"]) for line in lines] == [
        ("report", "orders", "OK"),
        ("report", "orders", "NOT_FOUND"),
        ("refused", "orders", "PERMISSION_DENIED"),
        ("refused", "orders", "PERMISSION_DENIED"),
        ("refused", "nobody", "UNAUTHENTICATED"),
    ]
    assert {line["from"] for line in lines} == {"127.0.0.1"}
    assert {line["service"] for line in lines} == {"stage-scheduler"}
    assert lines[1]["reason"] == "the job is unknown"
    assert lines[2]["jobs"] == ["billing"]
    assert lines[3]["method"] == f"/{NAME}/Submit"
    text = audit.read_text()
    assert all(secret not in text for secret in (ORDERS, "that-is-unknown", sha256(ORDERS)))
    assert audit.stat().st_mode & 0o777 == 0o600


async def test_a_token_that_may_do_all_is_written_down_too(tmp_path: Path) -> None:
    """Without principals; also behind the back of logrotate."""
    audit = tmp_path / "audit.jsonl"
    security = ServerSecurity(token="a-token-that-may-do-all-with-32-characters")
    async with (
        serving(tmp_path, security=security, audit_log=str(audit)) as (server, _),
        calling(server.address, "a-token-that-may-do-all-with-32-characters") as stub,
    ):
        await stub.Report(pb.ReportRequest(job_id="one", stage_id="s"), timeout=DEADLINE)
        audit.rename(tmp_path / "audit.1")
        await stub.Report(pb.ReportRequest(job_id="two", stage_id="s"), timeout=DEADLINE)
    (line,) = lines_of(tmp_path / "audit.1")
    assert (line["event"], line["who"], line["jobs"], line["outcome"]) == ("report", "token", ["one"], "OK")
    assert [line["jobs"] for line in lines_of(audit)] == [["two"]]


async def test_strangers_do_not_fill_the_audit_log(file: Path, tmp_path: Path) -> None:
    """Some refusals are written, the others counted."""
    audit = tmp_path / "audit.jsonl"
    async with serving(file, audit_log=str(audit)) as (server, _), calling(server.address, None) as stub:
        begun = asyncio.get_running_loop().time()
        request = pb.GetJobRequest(job_id="orders")
        await asyncio.gather(*(refusal(stub.GetJob(request, timeout=DEADLINE)) for _ in range(400)))
        seconds = asyncio.get_running_loop().time() - begun
    lines = lines_of(audit)
    assert sum(int(str(line.get("further", 1))) for line in lines) == 400
    assert len(lines) <= 101 + 10 * (seconds + 1)


def test_an_audit_log_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    """A link is not followed, either."""
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    settings = [ServerSettings(audit_log=str(path)) for path in (tmp_path, tmp_path / "link", tmp_path / "no" / "way")]
    for one in settings:
        server = GrpcServer(one, register=[], service_names=[NAME])
        with pytest.raises(RpcOptionError, match="audit_log: cannot write"):
            asyncio.run(server.__aenter__())


async def read(call: grpc.aio.UnaryStreamCall[Any, pb.WatchResponse]) -> pb.WatchResponse:
    answer = await call.read()
    assert isinstance(answer, pb.WatchResponse)
    return answer


@pytest.mark.parametrize("change", ["token", "principal", "job"])
async def test_a_stream_ends_soon_after_its_caller_was_taken_back(file: Path, change: str) -> None:
    """A revoked token ends it with UNAUTHENTICATED, a revoked right with PERMISSION_DENIED."""
    async with serving(file, recheck_seconds=0.05) as (server, servicer), calling(server.address, ORDERS) as stub:
        call = stub.Watch(pb.WatchRequest(job_id="orders"), timeout=DEADLINE)
        assert (await read(call)).job.version == 1
        if change == "token":
            put(file, FILE.replace(sha256(ORDERS), sha256("another")))
        elif change == "principal":
            put(file, "# empty")
        else:
            put(file, FILE.replace('jobs = ["orders"', 'jobs = ["parcels"'))
        code, details = await refusal(call.read())
        if change == "job":
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "may not use job 'orders'" in details
        else:
            assert code is grpc.StatusCode.UNAUTHENTICATED
            assert "is not taken any more: call again" in details
        assert servicer.watched == 0


async def test_watches_of_health_are_checked_again_like_every_stream(file: Path) -> None:
    """Until its principal is taken back."""
    async with (
        serving(file, recheck_seconds=0.05) as (server, _),
        open_aio_channel(server.address, ClientSecurity(token=ORDERS)) as channel,
    ):
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=DEADLINE)
        assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        put(file, FILE.replace(sha256(ORDERS), sha256("another")))
        code, details = await refusal(call.read())
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "is not taken any more: call again" in details


async def test_a_stream_whose_client_reads_nothing_ends_too(file: Path) -> None:
    """It is blocked in an answer that cannot be sent."""
    async with serving(file, recheck_seconds=0.05) as (server, servicer), calling(server.address, ORDERS) as stub:
        call = stub.Watch(pb.WatchRequest(job_id="shared-flood"), timeout=DEADLINE)
        assert (await read(call)).job.name
        put(file, "# empty")
        async with asyncio.timeout(DEADLINE):
            await servicer.unwatched.wait()
        assert servicer.watched == 0
        # The client reads the rest, and gets the status.
        code, details = await refusal(read_on(call))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "is not taken any more: call again" in details


async def read_on(call: grpc.aio.UnaryStreamCall[pb.WatchRequest, pb.WatchResponse]) -> None:
    async with asyncio.timeout(DEADLINE):
        while await call.read():
            pass


async def test_a_stream_continues_while_its_caller_has_rights(file: Path) -> None:
    """However often the file changes otherwise."""
    async with serving(file, recheck_seconds=0.02) as (server, servicer), calling(server.address, ORDERS) as stub:
        call = stub.Watch(pb.WatchRequest(job_id="orders"), timeout=DEADLINE)
        assert (await read(call)).job.version == 1
        for number in range(5):
            put(file, f"{FILE}\n# {number}")
            await stub.GetJob(pb.GetJobRequest(job_id="orders"), timeout=DEADLINE)
            await asyncio.sleep(0.03)
        servicer.more.set()
        assert (await read(call)).job.version == 2
        assert not await call.read()


async def test_a_stream_of_a_token_file_ends_with_its_token(tmp_path: Path) -> None:
    """No principals are needed for that."""
    file = tmp_path / "tokens"
    file.write_text(ORDERS)
    security = ServerSecurity(token_file=file)
    async with (
        serving(file, security=security, recheck_seconds=0.05) as (server, servicer),
        calling(server.address, ORDERS) as stub,
    ):
        call = stub.Watch(pb.WatchRequest(job_id="orders"), timeout=DEADLINE)
        assert (await read(call)).job.version == 1
        put(file, BILLING)
        assert (await refusal(call.read()))[0] is grpc.StatusCode.UNAUTHENTICATED
        assert servicer.watched == 0


def test_streams_are_looked_at_often_enough_to_end_within_a_minute() -> None:
    """By default."""
    assert ServerSettings().recheck_seconds <= 30


async def test_a_unary_call_that_waits_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    """The servicer is cancelled, and the caller gets UNAUTHENTICATED."""
    file = tmp_path / "tokens"
    file.write_text(f"{ORDERS}\n{BILLING}")
    security = ServerSecurity(token_file=file)
    async with (
        serving(file, security=security, recheck_seconds=0.05) as (server, servicer),
        calling(server.address, ORDERS) as stub,
        asyncio.timeout(DEADLINE),
    ):
        call = stub.GetJob(pb.GetJobRequest(job_id="waits"))
        await servicer.begun.wait()
        put(file, BILLING)
        assert (await refusal(call))[0] is grpc.StatusCode.UNAUTHENTICATED
    assert servicer.unwatched.is_set()


async def test_calls_that_no_servicer_sees_are_in_the_audit_log(file: Path, tmp_path: Path) -> None:
    """Unknown methods, and requests that break a rule of the contract."""
    audit = tmp_path / "audit.jsonl"
    async with (
        serving(file, audit_log=str(audit)) as (server, _),
        open_aio_channel(server.address, ClientSecurity(token=ORDERS)) as channel,
    ):
        code, _ = await refusal(channel.unary_unary(f"/{NAME}/Nothing", None, None)(b"", timeout=DEADLINE))
        assert code is grpc.StatusCode.UNIMPLEMENTED
        long = pb.ReportRequest(job_id="x" * 2_000, stage_id="s")
        code, _ = await refusal(pb_grpc.StageSchedulerServiceStub(channel).Report(long, timeout=DEADLINE))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert [(line["event"], line["who"], line["outcome"]) for line in lines_of(audit)] == [
        ("refused", "orders", "UNIMPLEMENTED"),
        ("refused", "orders", "INVALID_ARGUMENT"),
    ]


@pytest.mark.parametrize("name", ["nobody", "anybody", "token", "certificate"])
def test_a_principal_cannot_have_the_name_of_a_stranger(name: str) -> None:
    """The audit log would not distinguish them."""
    with pytest.raises(RpcOptionError, match="choose another name"):
        parse_principals(f"[[principal]]\nname = '{name}'\ntoken_sha256 = '{D1}'".encode())
