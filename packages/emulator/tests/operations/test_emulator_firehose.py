"""Firehose, into a folder."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.config import Config

from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = Config(parameter_validation=False, retries={"total_max_attempts": 1})
DESTINATION = {"RoleARN": "arn:aws:iam::123456789012:role/firehose", "BucketARN": "arn:aws:s3:::bucket"}


@contextlib.contextmanager
def firehose(**options: Any) -> Iterator[tuple[RunningEmulator, Any]]:
    with running_emulator(tls=False, **options) as emulator:
        client = emulator.client("firehose", config=PLAIN)
        client.create_delivery_stream(DeliveryStreamName="events")
        yield emulator, client


def delivered(emulator: RunningEmulator, name: str = "events") -> list[bytes]:
    return [file.read_bytes() for file in sorted((emulator.firehose_folder / name).iterdir())]


def refused(client: Any, operation: str, **parameters: Any) -> tuple[str, str]:
    with pytest.raises(client.exceptions.ClientError) as caught:
        getattr(client, operation)(**parameters)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def test_records_follow_each_other_in_a_file(tmp_path: Path) -> None:
    """As Firehose writes to S3: nothing between records, in the order of the calls, in the folder of the options."""
    with firehose(firehose_folder=tmp_path) as (emulator, client):
        answer = client.put_record(DeliveryStreamName="events", Record={"Data": b"one\n"})
        assert answer["RecordId"]
        answer = client.put_record_batch(DeliveryStreamName="events", Records=[{"Data": b"two\n"}, {"Data": b"three"}])
        assert answer["FailedPutCount"] == 0
        assert len({result["RecordId"] for result in answer["RequestResponses"]}) == 2
        assert delivered(emulator) == [b"one\ntwo\nthree"]
    assert [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()] == [b"one\ntwo\nthree"]


def test_a_delivery_stream_is_described_listed_and_deleted() -> None:
    """It is ACTIVE at once, and its destination is what was asked for."""
    with firehose() as (_, client):
        client.create_delivery_stream(DeliveryStreamName="second", ExtendedS3DestinationConfiguration=DESTINATION)
        described = client.describe_delivery_stream(DeliveryStreamName="second")["DeliveryStreamDescription"]
        assert described["DeliveryStreamStatus"] == "ACTIVE"
        assert described["DeliveryStreamARN"].endswith(":deliverystream/second")
        assert described["Destinations"][0]["ExtendedS3DestinationDescription"] == DESTINATION
        assert client.list_delivery_streams()["DeliveryStreamNames"] == ["events", "second"]
        client.delete_delivery_stream(DeliveryStreamName="events")
        assert client.list_delivery_streams()["DeliveryStreamNames"] == ["second"]
        code, _ = refused(client, "put_record", DeliveryStreamName="events", Record={"Data": b"x"})
        assert code == "ResourceNotFoundException"
        assert refused(client, "create_delivery_stream", DeliveryStreamName="second")[0] == "ResourceInUseException"


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ([], "ValidationException"),
        ([b"x"] * 501, "ValidationException"),
        ([bytes(1_024_001)], "ValidationException"),
        ([bytes(1_000_000)] * 5, "InvalidArgumentException"),
    ],
)
def test_a_batch_beyond_the_limits_is_refused(records: list[bytes], code: str) -> None:
    """1 to 500 records, 1,024,000 bytes a record, 4 MiB a request; nothing of it is written."""
    with firehose() as (emulator, client):
        entries = [{"Data": data} for data in records]
        assert refused(client, "put_record_batch", DeliveryStreamName="events", Records=entries)[0] == code
        assert delivered(emulator) == []


def test_calls_beyond_the_rate_are_refused_whole() -> None:
    """And without limits nothing is."""
    with firehose(clock=ManualClock(), firehose_calls_per_second=1) as (_, client):
        client.put_record_batch(DeliveryStreamName="events", Records=[{"Data": b"x"}])
        code, _ = refused(client, "put_record_batch", DeliveryStreamName="events", Records=[{"Data": b"x"}])
        assert code == "ServiceUnavailableException"
    full = [{"Data": b"x" * 1_000_000}] * 4
    for options, failed in ({}, [0, 3]), ({"enforce_limits": False}, [0, 0]):
        with firehose(clock=ManualClock(), **options) as (_, client):
            answers = [client.put_record_batch(DeliveryStreamName="events", Records=full) for _ in range(2)]
            assert [answer["FailedPutCount"] for answer in answers] == failed


def test_no_delivery_stream_writes_beside_its_folder(tmp_path: Path) -> None:
    """Names that are folders of the system are refused."""
    with firehose(firehose_folder=tmp_path / "inner") as (_, client):
        for name in (".", ".."):
            assert refused(client, "create_delivery_stream", DeliveryStreamName=name)[0] == "InvalidArgumentException"
        assert [path.name for path in tmp_path.iterdir()] == ["inner"]
