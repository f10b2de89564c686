"""The service behind TLS: who proves what, and who is turned away."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from penstock.efo_consumer import (
    ReaderUnavailableError,
    RecordPublisherType,
    ShardPosition,
    StreamPositions,
    connect_reader,
    ranges_between,
    read_ranges,
)
from penstock.emulator.testing import running_emulator
from penstock.rpc import ClientSecurity
from penstock.rpc.testing import service_process

TOKEN = "a-token-of-this-test-with-32-characters"


@dataclass
class Served:
    """The service, and the files of its authority and of a client that it knows."""

    address: str
    ca_file: Path
    certificate_file: Path
    private_key_file: Path
    other_ca_file: Path

    def security(self, **options: object) -> ClientSecurity:
        return ClientSecurity(**({"ca_file": self.ca_file, "token": TOKEN} | options))  # type: ignore[arg-type]  # its options


@pytest.fixture(params=["tls", "mutual"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    authority = trustme.CA()
    server, client = authority.issue_cert("localhost", "127.0.0.1"), authority.issue_cert("query@example.com")
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key", "client_cert", "client_key", "other_ca")}
    authority.cert_pem.write_to_path(files["ca"])
    trustme.CA().cert_pem.write_to_path(files["other_ca"])
    server.cert_chain_pems[0].write_to_path(files["cert"])
    server.private_key_pem.write_to_path(files["key"])
    client.cert_chain_pems[0].write_to_path(files["client_cert"])
    client.private_key_pem.write_to_path(files["client_key"])
    with running_emulator() as emulator:
        kinesis = emulator.client()
        kinesis.create_stream(StreamName="orders", ShardCount=1)
        kinesis.put_record(StreamName="orders", Data=b"row", PartitionKey="k")
        environment = os.environ | {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "PENSTOCK_READER_TOKEN": TOKEN,
            "PENSTOCK_READER_REGION": "us-east-1",
            "PENSTOCK_READER_CA_BUNDLE": str(emulator.ca_file),
        }
        arguments = ["serve", "--endpoint-url", emulator.tls_endpoint_url]
        arguments += ["--certificate-file", str(files["cert"]), "--private-key-file", str(files["key"])]
        if request.param == "mutual":
            arguments += ["--client-ca-file", str(files["ca"])]
        with service_process("penstock.services.shard_reader", arguments, environment) as process:
            port = process.address.rpartition(":")[2]
            yield Served(f"localhost:{port}", files["ca"], files["client_cert"], files["client_key"], files["other_ca"])


@pytest.mark.parametrize("served", ["mutual"], indirect=True)
def test_a_client_proves_itself_and_reads(served: Served) -> None:
    """With certificate and token the driver plans and a task reads; without the certificate nobody gets in."""
    security = served.security(certificate_file=served.certificate_file, private_key_file=served.private_key_file)
    start = StreamPositions({"orders": {"shardId-000000000000": ShardPosition.trim_horizon()}})
    reader = connect_reader(served.address, security)
    reader.open("query", start, RecordPublisherType.POLLING)
    end = reader.positions(start, wait_seconds=20).positions
    batches = list(read_ranges(served.address, security, "query", ranges_between(start, end)))
    assert [row for batch in batches for row in batch.column("data").to_pylist()] == [b"row"]
    reader.close()
    with pytest.raises(ReaderUnavailableError):
        list(read_ranges(served.address, served.security(), "query", []))


@pytest.mark.parametrize("served", ["tls"], indirect=True)
def test_the_authority_and_the_token_decide(served: Served) -> None:
    """The right authority and token are let in; another authority, another token, or plain text are not."""
    assert list(read_ranges(served.address, served.security(), "query", [])) == []
    with pytest.raises(ReaderUnavailableError, match="UNAUTHENTICATED"):
        list(read_ranges(served.address, served.security(token="wrong" * 7), "query", []))
    with pytest.raises(ReaderUnavailableError, match="UNAVAILABLE"):
        list(read_ranges(served.address, served.security(ca_file=served.other_ca_file), "query", []))
    with pytest.raises(ReaderUnavailableError, match="UNAVAILABLE"):
        list(read_ranges(served.address, ClientSecurity(), "query", []))
