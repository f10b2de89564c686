"""Dead letters are written again to the stream that they were for."""

import errno
import json
import os
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.async_sink.dead_letters import redrive
from penstock.aws import AwsOptions
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.rpc import open_regular


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(enforce_limits=False) as emulator:
        yield emulator


@pytest.fixture
def options(emulator: RunningEmulator) -> AwsOptions:
    return AwsOptions(
        region="us-east-1", endpoint_url=emulator.endpoint_url, access_key_id="test", secret_access_key="test"
    )


def make_stream(emulator: RunningEmulator, name: str, *, largest_kib: int | None = None) -> str:
    """A stream of one shard; returns its ARN."""
    client = emulator.client()
    client.create_stream(StreamName=name, ShardCount=1)
    arn: str = client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
    if largest_kib is not None:
        client.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=largest_kib)
    return arn


def held(emulator: RunningEmulator, name: str) -> list[bytes]:
    return emulator.call(lambda: [one.data for one in emulator.kinesis.streams[name].shards[0].records])


def letter(data: bytes, stream: str | None) -> dict[str, Any]:
    """As a Spark job keeps it."""
    fields = {"reason": "attempts", "errorCode": "InternalFailure", "errorMessage": "try later", "attempts": 3}
    key = {"partitionKey": "k", "explicitHashKey": None, "row": None, "time": "2026-01-31T12:00:00.000Z"}
    return {"data": b64encode(data).decode(), "streamName": stream, **key, **fields}


def keep(folder: Path, *letters: dict[str, Any], name: str = "job-0-0.json") -> None:
    (folder / name).write_text("".join(json.dumps(one) + "\n" for one in letters))


def test_a_letter_for_the_arn_of_a_stream_is_written_to_it(
    emulator: RunningEmulator, options: AwsOptions, tmp_path: Path
) -> None:
    """`to` may be an ARN as well."""
    arn = make_stream(emulator, "named")
    keep(tmp_path, letter(b"AA1", arn))
    assert redrive(tmp_path, options).written == {arn: 1}
    assert held(emulator, "named") == [b"AA1"]
    other = tmp_path / "other"
    other.mkdir()
    keep(other, letter(b"AA2", "gone"))
    assert redrive(other, options, to=arn).is_complete
    assert held(emulator, "named") == [b"AA1", b"AA2"]


def test_a_letter_of_an_empty_stream_stays_and_the_others_are_written(
    emulator: RunningEmulator, options: AwsOptions, tmp_path: Path
) -> None:
    """It names no stream, as one with a null does."""
    make_stream(emulator, "others")
    keep(tmp_path, letter(b"a", ""), letter(b"b", None), letter(b"c", "others"))
    summary = redrive(tmp_path, options)
    assert (summary.written, summary.kept) == ({"others": 1}, {"names no stream: say --to": 2})


def test_letters_of_delivery_streams_and_rows_without_a_record_stay(
    emulator: RunningEmulator, options: AwsOptions, tmp_path: Path
) -> None:
    """Letters for Firehose do not go to a Kinesis stream, and a row as JSON is not a record."""
    make_stream(emulator, "encoded")
    archived = letter(b"a", "encoded") | {"kind": "firehose"}
    refused = letter(b'{"v":1}', "encoded") | {"kind": "kinesis", "reason": "not encoded", "errorCode": ""}
    keep(tmp_path, archived, refused, letter(b"c", "encoded") | {"kind": "kinesis"})
    summary = redrive(tmp_path, options, to="encoded", key="k")
    assert summary.written == {"encoded": 1}
    assert sorted(summary.kept) == [
        "is a row that could not be encoded, as JSON: correct the row or the schema, and write the row again",
        "is for firehose, which is not written from here",
    ]
    assert held(emulator, "encoded") == [b"c"]


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize(("mode", "noted"), [(0o600, 0o600), (0o640, 0o640), (0o444, 0o644)])
def test_notes_are_as_private_as_the_letters(
    emulator: RunningEmulator, options: AwsOptions, tmp_path: Path, mode: int, noted: int, is_there: bool
) -> None:
    """They hold the same records. Notes that exist with a wider mode get the mode of the letters."""
    stream = make_stream(emulator, f"private-{mode}-{is_there}")
    keep(tmp_path, letter(b"secret", stream))
    (tmp_path / "job-0-0.json").chmod(mode)
    if is_there:
        (tmp_path / "_redriven").mkdir()
        (tmp_path / "_redriven" / "job-0-0.json").touch(0o666)
    before = os.umask(0o022)
    try:
        assert redrive(tmp_path, options).is_complete
    finally:
        os.umask(before)
    assert (tmp_path / "_redriven" / "job-0-0.json").stat().st_mode & 0o777 == noted


@pytest.mark.parametrize("when", ["before they are sent", "as they are sent"])
def test_letters_whose_file_goes_away_meanwhile_are_written_once_and_so_are_the_others(
    emulator: RunningEmulator, options: AwsOptions, tmp_path: Path, when: str
) -> None:
    """A micro-batch that runs again removes the letters of its previous run."""
    stream = f"vanishing {when}".replace(" ", "-")
    make_stream(emulator, stream)
    keep(tmp_path, letter(b"1", stream), name="a.json")
    keep(tmp_path, letter(b"2", stream), name="b.json")
    keep(tmp_path, letter(b"3", stream) | {"explicitHashKey": "no number"}, name="c.json")

    def vanish(at: str) -> bool:
        if at == when:
            (tmp_path / "a.json").unlink(missing_ok=True)
        return True

    def report(stream: str, words: str) -> None:
        vanish("as they are sent")

    for _ in range(2):
        redrive(
            tmp_path,
            options,
            wanted=lambda one: one.data != b"3" or vanish("before they are sent"),
            report=report,
        )
    assert held(emulator, stream) == [b"1", b"2"]


def test_letters_that_could_not_be_noted_are_not_sent(
    emulator: RunningEmulator, options: AwsOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be sent again each time."""
    make_stream(emulator, "not-noted")
    keep(tmp_path, letter(b"1", "not-noted"), name="a.json")
    keep(tmp_path, letter(b"2", "not-noted"), name="b.json")

    def open_one(path: str | Path, flags: int = os.O_RDONLY, **others: Any) -> int:
        if path == "b.json" and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "no space left", path)
        return open_regular(path, flags, **others)

    monkeypatch.setattr("penstock.async_sink.dead_letters.open_regular", open_one)
    for _ in range(2):
        with pytest.raises(OSError, match=r"b\.json"):
            redrive(tmp_path, options)
    assert held(emulator, "not-noted") == []
