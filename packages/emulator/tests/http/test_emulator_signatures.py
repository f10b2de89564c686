"""Signature Version 4 over real sockets, and against requests that were tampered with."""

from __future__ import annotations

import time
import uuid
from typing import Any

import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from penstock.emulator import KinesisError
from penstock.emulator._http.signatures import SignatureVerifier
from penstock.emulator.testing import running_emulator

KEYS = {"AKIDEXAMPLE": "wJalrXUtnFEMI"}
TARGET = "Kinesis_20131202.ListStreams"


def client(url: str, key: str = "AKIDEXAMPLE", secret: str = KEYS["AKIDEXAMPLE"], **options: Any) -> Any:
    return botocore.session.Session().create_client(
        "kinesis",
        endpoint_url=url,
        region_name=options.pop("region_name", "us-east-1"),
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        **options,
    )


@pytest.fixture(scope="module")
def emulator() -> Any:
    with running_emulator(verify_signatures=True, access_keys=KEYS) as emulator:
        yield emulator


def signed(
    *, at: float | None = None, key: str = "AKIDEXAMPLE", region: str = "us-east-1", service: str = "kinesis"
) -> tuple[dict[str, str], bytes]:
    """The headers and the body of a request that botocore signed, now or at another time."""
    body = b'{"Limit": 5}'
    request = AWSRequest("POST", "http://localhost:4567/", headers={"X-Amz-Target": TARGET}, data=body)
    signer: Any = SigV4Auth(Credentials(key, KEYS.get(key, "other")), service, region)
    request.context["timestamp"] = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at if at is not None else time.time()))
    signer._modify_request_before_signing(request)
    canonical = signer.canonical_request(request)
    signature = signer.signature(signer.string_to_sign(request, canonical), request)
    signer._inject_signature_to_request(request, signature)
    headers = {name.lower(): str(value) for name, value in request.headers.items()}
    return {"host": "localhost:4567", **headers}, body


def verify(headers: dict[str, str], body: bytes, *, now: float | None = None, path: str = "/") -> str:
    """The code of the refusal; nothing where the request passes."""
    verifier = SignatureVerifier(KEYS, region="us-east-1", wall_clock=lambda: now or time.time())
    try:
        verifier.verify("POST", path, headers, body)
    except KinesisError as error:
        return error.code
    return ""


@pytest.mark.parametrize("tls", [False, True])
def test_a_client_with_a_known_key_is_served(emulator: Any, tls: bool) -> None:
    """botocore's signatures are right over HTTP and HTTPS, for plain answers and for event streams."""
    options = {"verify": str(emulator.ca_file)} if tls else {}
    kinesis = client(emulator.tls_endpoint_url if tls else emulator.endpoint_url, **options)
    name = f"stream-{uuid.uuid4().hex[:8]}"
    kinesis.create_stream(StreamName=name, ShardCount=1)
    kinesis.put_record(StreamName=name, Data="späte Post".encode(), PartitionKey="ключ")
    arn = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
    consumer = kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="reader")["Consumer"]["ConsumerARN"]
    deadline = time.monotonic() + 20
    while True:
        try:
            stream = kinesis.subscribe_to_shard(
                ConsumerARN=consumer, ShardId="shardId-000000000000", StartingPosition={"Type": "TRIM_HORIZON"}
            )["EventStream"]
            break
        except kinesis.exceptions.ClientError:
            assert time.monotonic() < deadline
    assert next(iter(stream))["SubscribeToShardEvent"]["Records"][0]["PartitionKey"] == "ключ"
    stream.close()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"secret": "wrong"}, "InvalidSignatureException"),
        ({"key": "AKIDOTHER"}, "UnrecognizedClientException"),
        ({"region_name": "eu-west-1"}, "InvalidSignatureException"),
    ],
)
def test_a_client_with_a_wrong_key_is_refused(emulator: Any, options: dict[str, Any], code: str) -> None:
    """A wrong secret, an unknown key and another region have AWS's errors."""
    kinesis = client(emulator.endpoint_url, **options)
    with pytest.raises(kinesis.exceptions.ClientError) as caught:
        kinesis.list_streams()
    assert caught.value.response["Error"]["Code"] == code
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_a_signed_request_passes() -> None:
    """The premise of the tests below."""
    assert verify(*signed()) == ""


@pytest.mark.parametrize("header", ["x-amz-target", "x-amz-date", "host"])
def test_a_request_that_was_tampered_with_is_refused(header: str) -> None:
    """Body, path and every signed header are covered."""
    headers, body = signed()
    assert verify(headers, body + b" ") == "InvalidSignatureException"
    assert verify(headers, body, path="/other") == "InvalidSignatureException"
    other = {"x-amz-date": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + 1))}
    changed = headers | {header: other.get(header, "other")}
    assert verify(changed, body) == "InvalidSignatureException"


@pytest.mark.parametrize(("age", "code"), [(0, ""), (299, ""), (301, "x"), (-299, ""), (-301, "x"), (86_400, "x")])
def test_a_signature_is_good_for_five_minutes(age: float, code: str) -> None:
    """Older and younger ones are refused with the times in the message."""
    now = 1_767_268_800.0
    headers, body = signed(at=now - age)
    assert verify(headers, body, now=now) == ("InvalidSignatureException" if code else "")
