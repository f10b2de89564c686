import os
from pathlib import Path

import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from integration_tests.security_tools import main_of
from penstock.rpc import open_channel
from penstock.rpc.testing import service_process
from penstock.terminal.testing import run_main

ROOT = Path(__file__).resolve().parents[2]
SERVICES = {
    "consumer-registry": "penstock.proto.consumer_registry.v1.ConsumerRegistryService",
    "shard-reader": "penstock.proto.shard_reader.v1.ShardReaderService",
    "sink-gateway": "penstock.proto.sink_gateway.v1.SinkGatewayService",
    "stage-scheduler": "penstock.proto.stage_scheduler.v1.StageSchedulerService",
}
PREFIXES = {
    "consumer-registry": "REGISTRY",
    "shard-reader": "READER",
    "sink-gateway": "SINK",
    "stage-scheduler": "STAGES",
    "console": "CONSOLE",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    values = dict.fromkeys(names, "test") | {"AWS_REGION": "us-east-1", "HOME": str(tmp_path)}
    return {**os.environ, **values, "PENSTOCK_REGISTRY_STORE": f"sqlite:///{tmp_path / 'registry.sqlite'}"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_starts_answers_and_stops_cleanly(name: str, environment: dict[str, str]) -> None:
    """On loopback and a free port: healthy, listed by reflection, and exit code 0 after SIGTERM."""
    module = "penstock.services." + name.replace("-", "_")
    with service_process(module, ["serve"], environment) as process:
        assert process.address.startswith("127.0.0.1:")
        with open_channel(process.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = health.Check(health_pb2.HealthCheckRequest(service=SERVICES[name]), timeout=30)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            question = reflection_pb2.ServerReflectionRequest(list_services="")
            (listed,) = reflection.ServerReflectionInfo(iter([question]), timeout=30)
            assert SERVICES[name] in {service.name for service in listed.list_services_response.service}
        assert process.terminate() == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Create a server's certificate, and return it as settings."""
    folder = tmp_path_factory.mktemp("pki")
    leaf = trustme.CA().issue_cert("localhost")
    leaf.cert_chain_pems[0].write_to_path(folder / "server.pem")
    leaf.private_key_pem.write_to_path(folder / "server.key")
    return {"CERTIFICATE_FILE": str(folder / "server.pem"), "PRIVATE_KEY_FILE": str(folder / "server.key")}


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        ((), "set a token (--token-file)"),
        (("certificate", "allow_plain_text"), "set a token (--token-file)"),
        (("token", "allow_unauthenticated"), "set --certificate-file"),
    ],
    ids=["nothing", "certificate", "token"],
)
@pytest.mark.parametrize("name", ["shard-reader", "console"])
def test_a_service_does_not_show_itself_to_the_network_unprotected(
    name: str, given: tuple[str, ...], cure: str, environment: dict[str, str], certificate: dict[str, str]
) -> None:
    """A host that others can reach needs TLS, and a proof of who calls; the message names the option and the cure."""
    settings = {
        "certificate": certificate,
        "token": {"TOKEN": "a-token-of-these-tests-with-32-characters"},
        "allow_plain_text": {"ALLOW_PLAIN_TEXT": "true"},
        "allow_unauthenticated": {"ALLOW_UNAUTHENTICATED": "true"},
    }
    prefix = f"PENSTOCK_{PREFIXES[name]}"
    environment |= {f"{prefix}_{key}": value for one in given for key, value in settings[one].items()}
    ended = run_main(main_of(name), ["serve", "--host", "0.0.0.0"], environ=environment)
    assert ended.returncode == 2
    assert "--host" in ended.stderr or "host: " in ended.stderr
    assert "0.0.0.0 is reachable from other machines" in ended.stderr
    assert cure in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", ["shard-reader", "console"])
def test_two_flags_open_a_service_to_the_network(name: str, environment: dict[str, str]) -> None:
    """Behind a proxy that encrypts and knows who calls."""
    module = "penstock.services." + name.replace("-", "_")
    flags = ["serve", "--host", "0.0.0.0", "--allow-plain-text", "--allow-unauthenticated"]
    with service_process(module, flags, environment) as process:
        assert process.address.startswith("0.0.0.0:")
        assert process.terminate() == 0


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_be_put_into_a_container(name: str) -> None:
    """Each has a Dockerfile that runs its command as a user without rights, and a README that names the command."""
    folder, module = ROOT / "services" / name, f"penstock.services.{name.replace('-', '_')}"
    lines = (folder / "Dockerfile").read_text().splitlines()
    assert any(line.startswith("USER ") and "root" not in line for line in lines)
    assert any(line.startswith("ENTRYPOINT") and f'"{module}"' in line for line in lines)
    assert f"penstock {PREFIXES[name].lower()} serve" in (folder / "README.md").read_text()
