import subprocess
import sys
from pathlib import Path

import pytest

PROTO = Path(__file__).resolve().parents[3] / "proto"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_generated_code_is_current() -> None:
    """What is committed in packages/proto is what the contracts generate."""
    result = run(sys.executable, str(PROTO / "generate.py"), "--check")
    assert result.returncode == 0, result.stderr


def test_the_contracts_pass_the_linter() -> None:
    """buf finds names, comments and versions in order."""
    result = run(str(Path(sys.executable).with_name("buf")), "lint", str(PROTO))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "contract", ["consumer_registry", "reader_directory", "shard_reader", "sink_gateway", "stage_scheduler"]
)
def test_each_contract_can_be_imported_by_its_name(contract: str) -> None:
    """Every service has its messages and its stubs in penstock.proto."""
    name = f"penstock.proto.{contract}.v1.{contract}_pb2_grpc"
    module = __import__(name, fromlist=["grpc"])
    service = "".join(part.title() for part in contract.split("_")) + "Service"
    assert hasattr(module, f"{service}Stub")
    assert hasattr(module, f"{service}Servicer")
