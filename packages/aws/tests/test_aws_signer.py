"""Signatures are the same as botocore's."""

import datetime
from contextlib import AbstractContextManager
from typing import Self
from unittest import mock

import botocore.auth
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.aws import AwsOptionError
from penstock.aws._signer import JsonSigner

_KEY_TEXT = st.text("ABCXYZabcxyz0189+/=", min_size=1, max_size=40)
_CREDENTIALS = st.builds(ReadOnlyCredentials, _KEY_TEXT, st.text(min_size=1, max_size=40), st.none() | _KEY_TEXT)
_PATH = st.text(st.characters(codec="ascii", exclude_characters="?#[]"), max_size=20).map(
    lambda text: "/" + "".join(text.split()) + "/"
)
_HOSTS = ["kinesis.eu-west-1.amazonaws.com", "127.0.0.1", "[::1]", "Example.COM", "localhost"]
_PORTS = ["", ":80", ":443", ":4567"]


def _signer(url: str, now: float, *, service: str = "kinesis", region: str = "eu-west-1") -> JsonSigner:
    return JsonSigner(
        url=url,
        region=region,
        service=service,
        content_type="application/x-amz-json-1.1",
        target_prefix="Kinesis_20131202",
        wall_clock=lambda: now,
    )


def _headers(head: bytes) -> dict[str, str]:
    assert head.endswith(b"\r\n\r\n")
    lines = head[:-4].decode().split("\r\n")[1:]
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def standing_at(moment: datetime.datetime) -> AbstractContextManager[object]:
    """Let botocore's clock stand: its lowest version has no function for it, and asks the class."""
    if hasattr(botocore.auth, "get_current_datetime"):
        return mock.patch("botocore.auth.get_current_datetime", return_value=moment)

    class Standing(datetime.datetime):
        @classmethod
        def utcnow(cls) -> Self:
            return cls.fromtimestamp(moment.timestamp(), datetime.UTC)

    return mock.patch("botocore.auth.datetime", mock.Mock(wraps=datetime, datetime=Standing))


def _sign_by_botocore(
    url: str,
    now: float,
    service: str,
    region: str,
    credentials: ReadOnlyCredentials,
    operation: str,
    body: bytes,
    content_type: str = "application/x-amz-json-1.1",
) -> dict[str, str]:
    headers = {"Content-Type": content_type, "X-Amz-Target": f"Kinesis_20131202.{operation}"}
    request = AWSRequest(method="POST", url=url, data=body, headers=headers)
    moment = datetime.datetime.fromtimestamp(int(now), datetime.UTC).replace(tzinfo=None)
    with standing_at(moment):
        SigV4Auth(credentials, service, region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


@given(
    scheme=st.sampled_from(["http", "https"]),
    host=st.sampled_from(_HOSTS),
    port=st.sampled_from(_PORTS),
    path=_PATH,
    now=st.floats(0, 4e9),
    service=st.sampled_from(["kinesis", "dynamodb", "sqs", "firehose"]),
    region=st.sampled_from(["us-east-1", "ap-southeast-2", "cn-north-1"]),
    credentials=_CREDENTIALS,
    operation=st.sampled_from(["PutRecords", "GetRecords", "BatchWriteItem"]),
    body=st.binary(max_size=2_000),
    content_type=st.sampled_from([None, "application/x-amz-cbor-1.1"]),
)
@example(
    "https", "h", "", "/", 1e9, "kinesis", "us-east-1", ReadOnlyCredentials("A", "s", None), "PutRecords", b"", None
)
def test_a_signature_is_that_of_botocore(
    scheme: str,
    host: str,
    port: int | None,
    path: str,
    now: float,
    service: str,
    region: str,
    credentials: ReadOnlyCredentials,
    operation: str,
    body: bytes,
    content_type: str,
) -> None:
    """Byte for byte, with every header that is signed, whatever the endpoint, the credentials and the body."""
    url = f"{scheme}://{host}{port}{path}"
    signer = _signer(url, now, service=service, region=region)
    got = _headers(signer.head(credentials, operation, body, content_type=content_type))
    other = {} if content_type is None else {"content_type": content_type}
    want = _sign_by_botocore(url, now, service, region, credentials, operation, body, **other)
    assert got["authorization"] == want["authorization"]
    for name in ("content-type", "x-amz-target", "x-amz-date"):
        assert got[name] == want[name]
    assert got.get("x-amz-security-token") == want.get("x-amz-security-token")
    assert got["content-length"] == str(len(body))
    cut = len(body) // 3
    in_parts: list[bytes | memoryview] = [body[:cut], memoryview(body)[cut:]]
    assert _headers(signer.head(credentials, operation, in_parts, content_type=content_type)) == got


def test_other_credentials_and_another_day_make_another_key() -> None:
    """What is kept between calls is not kept for too long."""
    now = [86_399.0]
    signer = JsonSigner(
        url="https://h/",
        region="r",
        service="kinesis",
        content_type="application/x-amz-json-1.1",
        target_prefix="Kinesis_20131202",
        wall_clock=lambda: now[0],
    )
    first, second = ReadOnlyCredentials("A", "one", None), ReadOnlyCredentials("A", "two", "token")
    for credentials in (first, second, first):
        for now[0] in (86_399.0, 86_400.0, 86_401.5):
            got = _headers(signer.head(credentials, "PutRecords", b"{}"))["authorization"]
            want = _sign_by_botocore("https://h/", now[0], "kinesis", "r", credentials, "PutRecords", b"{}")
            assert got == want["authorization"]


@pytest.mark.parametrize(
    ("access_key", "token", "option"),
    [("A\r\nHost: x", None, "awsAccessKeyId"), ("A", "t\n", "awsSessionToken"), ("A", "ключ", "awsSessionToken")],
)
def test_credentials_cannot_begin_a_header(access_key: str, token: str | None, option: str) -> None:
    """A key with the end of a line in it, as files have them, is an error that names its option."""
    with pytest.raises(AwsOptionError) as error:
        _signer("https://h/", 0.0).head(ReadOnlyCredentials(access_key, "secret", token), "PutRecords", b"")
    assert error.value.option == option
    assert "Host: x" not in str(error.value)


@pytest.mark.parametrize("operation", ["", "Put Records", "Put\r\nX: y", "Пут"])
def test_an_operation_cannot_begin_a_header(operation: str) -> None:
    """It is a name of letters and digits."""
    with pytest.raises(ValueError, match="is not an operation"):
        _signer("https://h/", 0.0).head(ReadOnlyCredentials("A", "secret", None), operation, b"")


def test_secrets_are_not_in_what_a_signer_shows() -> None:
    """Neither the secret key nor what is derived from it."""
    signer = _signer("https://h/", 0.0)
    signer.head(ReadOnlyCredentials("A", "hush", "token-of-a-role"), "PutRecords", b"")
    shown = repr(signer) + repr(vars(signer))
    assert "hush" not in shown
    assert "token-of-a-role" not in shown
