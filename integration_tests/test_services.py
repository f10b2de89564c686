import os
import subprocess
import sys
import tomllib
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from penstock.rpc import open_channel
from penstock.rpc.testing import service_process

ROOT = Path(__file__).resolve().parents[1]
SERVICES = {
    "consumer-registry": "penstock.proto.consumer_registry.v1.ConsumerRegistryService",
    "shard-reader": "penstock.proto.shard_reader.v1.ShardReaderService",
    "sink-gateway": "penstock.proto.sink_gateway.v1.SinkGatewayService",
    "stage-scheduler": "penstock.proto.stage_scheduler.v1.StageSchedulerService",
}


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    values = dict.fromkeys(names, "test") | {"AWS_REGION": "us-east-1", "HOME": str(tmp_path)}
    return {**os.environ, **values, "PENSTOCK_REGISTRY_STORE": f"sqlite:///{tmp_path / 'registry.sqlite'}"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_starts_answers_and_stops_cleanly(name, environment):
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


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_does_not_show_itself_to_the_network_unprotected(name, environment):
    """A host that others can reach needs a certificate or a token; the message names the option."""
    command = [sys.executable, "-m", "penstock.services." + name.replace("-", "_"), "serve", "--host", "0.0.0.0"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 2
    assert "host" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_wants_the_token_that_it_was_given(name, environment):
    """The token comes from the environment or a file, never from a flag; calls without it are refused."""
    module = "penstock.services." + name.replace("-", "_")
    prefixes = {"consumer-registry": "REGISTRY", "shard-reader": "READER", "sink-gateway": "SINK"}
    variable = f"PENSTOCK_{prefixes.get(name, 'STAGES')}_TOKEN"
    with service_process(module, ["serve"], {**environment, variable: "secret"}) as process:
        with open_channel(process.address) as channel:
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            question = reflection_pb2.ServerReflectionRequest(list_services="")
            with pytest.raises(grpc.RpcError) as refused:
                list(reflection.ServerReflectionInfo(iter([question]), timeout=30))
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert process.terminate() == 0


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_be_put_into_a_container(name):
    """Each has a Dockerfile that runs its command as a user without rights, and a README that names the command."""
    folder = ROOT / "services" / name
    (command,) = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["scripts"]
    lines = (folder / "Dockerfile").read_text().splitlines()
    assert any(line.startswith("USER ") and "root" not in line for line in lines)
    assert any(line.startswith("ENTRYPOINT") and command in line for line in lines)
    assert command in (folder / "README.md").read_text()
