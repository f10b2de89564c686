import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from penstock.proto.rules.v1 import rules_pb2

CONTRACTS = ("consumer_registry", "reader_directory", "shard_reader", "sink_gateway", "stage_scheduler")
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


@pytest.mark.parametrize("contract", CONTRACTS)
def test_each_contract_can_be_imported_by_its_name(contract: str) -> None:
    """Every service has its messages and its stubs in penstock.proto."""
    name = f"penstock.proto.{contract}.v1.{contract}_pb2_grpc"
    module = __import__(name, fromlist=["grpc"])
    service = "".join(part.title() for part in contract.split("_")) + "Service"
    assert hasattr(module, f"{service}Stub")
    assert hasattr(module, f"{service}Servicer")


def described(contract: str) -> Any:
    """The service of a contract, as its descriptor."""
    module = import_module(f"penstock.proto.{contract}.v1.{contract}_pb2")
    (service,) = module.DESCRIPTOR.services_by_name.values()
    return service


def fields_of(message: Descriptor, path: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    """The fields of a message and of the messages in it, by their paths."""
    for field in message.fields:
        yield path + field.name, field
        if field.message_type is not None:
            yield from fields_of(field.message_type, f"{path}{field.name}.")


def rules(field: FieldDescriptor) -> Any:
    return field.GetOptions().Extensions[rules_pb2.field]


@pytest.mark.parametrize("contract", CONTRACTS)
def test_each_text_and_list_of_a_request_has_a_bound(contract: str) -> None:
    """A field without a bound lets a caller fill the memory of a service."""
    unbounded = []
    for method in described(contract).methods:
        for path, field in fields_of(method.input_type):
            # The rules of a map apply to its keys.
            is_key = field.containing_type is not None and field.containing_type.GetOptions().map_entry
            if field.type in (field.TYPE_STRING, field.TYPE_BYTES) and not is_key and not rules(field).max_bytes:
                unbounded.append(f"{method.name}: {path}")
            if field.is_repeated and not rules(field).max_items:
                unbounded.append(f"{method.name}: {path}, items")
    assert unbounded == []


RESOURCES = {
    "stream_name": rules_pb2.RESOURCE_STREAM,
    "stream_names": rules_pb2.RESOURCE_STREAM,
    "stream_arn": rules_pb2.RESOURCE_STREAM,
    "consumer_name": rules_pb2.RESOURCE_CONSUMER,
    "consumer_arn": rules_pb2.RESOURCE_CONSUMER,
    "disowned_consumer_arn": rules_pb2.RESOURCE_CONSUMER,
    "job_id": rules_pb2.RESOURCE_JOB,
    "session_id": rules_pb2.RESOURCE_SESSION,
    "store": rules_pb2.RESOURCE_STORE,
    "reader_id": rules_pb2.RESOURCE_READER,
    "destination": rules_pb2.RESOURCE_DESTINATION,
}


@pytest.mark.parametrize("contract", CONTRACTS)
def test_each_method_names_a_resource_or_acts_on_all_of_a_kind(contract: str) -> None:
    """A method that names nothing is open to every principal that may call it."""
    service = described(contract)
    assert service.GetOptions().Extensions[rules_pb2.service]
    for method in service.methods:
        fields = [*fields_of(method.input_type)]
        for path, field in fields:
            assert rules(field).resource == RESOURCES.get(field.name, rules_pb2.RESOURCE_UNSPECIFIED), path
        all_of = method.GetOptions().Extensions[rules_pb2.method].all_of
        assert all_of or any(rules(field).resource for _, field in fields), method.name


@pytest.mark.parametrize(
    ("contract", "name"),
    [("consumer_registry", "job_id"), ("reader_directory", "job_id"), ("shard_reader", "session_id")],
)
def test_an_id_that_belongs_to_its_caller_is_one_in_every_message(contract: str, name: str) -> None:
    """A message without the rule would reach what another caller holds, or show the id that the service stores."""
    found = [
        field
        for method in described(contract).methods
        for message in (method.input_type, method.output_type)
        for _, field in fields_of(message)
        if field.name == name
    ]
    assert len(found) >= 3
    assert all(rules(field).is_own_id for field in found)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_each_wait_has_a_bound(contract: str) -> None:
    """A call that waits holds memory of its service."""
    for method in described(contract).methods:
        for path, field in fields_of(method.input_type):
            assert field.name != "wait_seconds" or rules(field).maximum, path


@pytest.mark.parametrize("contract", CONTRACTS)
def test_each_list_of_a_response_comes_in_pages_or_has_a_bound(contract: str) -> None:
    """A response that is larger than a message may be would be refused to every caller."""
    unbounded = []
    for method in described(contract).methods:
        request, response = method.input_type.fields_by_name, method.output_type.fields_by_name
        paged = [field.name for field in method.output_type.fields if rules(field).order]
        assert len(paged) == ("next_page_token" in response) == ("page_token" in request), method.name
        assert not paged or rules(request["page_token"]).max_bytes, method.name
        assert "page_size" not in request or rules(request["page_size"]).maximum == 1_000, method.name
        for path, field in fields_of(method.output_type):
            in_pages = rules(field).order and path.partition(".")[0] in paged
            if field.is_repeated and not in_pages and not rules(field).max_items:
                unbounded.append(f"{method.name}: {path}")
    assert unbounded == []
