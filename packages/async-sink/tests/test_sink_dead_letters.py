"""Dead letters are written again to the stream that they were for."""

import json
import os
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.async_sink.dead_letters import read_dead_letters, redrive
from penstock.aws import AwsOptions
from penstock.emulator.testing import RunningEmulator, running_emulator

MEBIBYTE = 1 << 20


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


def test_a_file_that_a_micro_batch_removes_meanwhile_holds_no_letters(tmp_path: Path) -> None:
    """It was written again without them. One that is named and not there is an error."""
    for name in ("first.json", "second.json", "third.json"):
        keep(tmp_path, letter(name.encode(), "flights"), name=name)
    letters = read_dead_letters(tmp_path)
    read = [next(letters)]
    (tmp_path / "second.json").unlink()
    read += letters
    assert [one.data for one in read] == [b"first.json", b"third.json"]
    with pytest.raises(FileNotFoundError, match=r"second\.json"):
        list(read_dead_letters(tmp_path / "second.json"))


def test_large_letters_are_written_to_streams_that_take_them(
    emulator: RunningEmulator, options: AwsOptions, tmp_path: Path
) -> None:
    """A stream may be set to take 10 MiB. One that takes less refuses them itself, and takes the others."""
    large, small = b"x" * (2 * MEBIBYTE), b"small"
    largest = b"y" * (10 * MEBIBYTE - 1)
    make_stream(emulator, "wide", largest_kib=10 * 1024)
    make_stream(emulator, "narrow")
    keep(tmp_path, *(letter(data, "wide") for data in (large, small, largest)))
    assert redrive(tmp_path, options, max_attempts=3).is_complete
    assert sorted(map(len, held(emulator, "wide"))) == [len(small), len(large), len(largest)]
    keep(tmp_path, *(letter(data, "narrow") for data in (small, large, small)))
    reported: list[str] = []
    summary = redrive(tmp_path, options, max_attempts=3, report=lambda _, words: reported.append(words))
    assert (summary.written["narrow"], summary.failed["narrow"]) == (2, 1)
    assert held(emulator, "narrow") == [small, small]
    assert [len(one.data or b"") for one in read_dead_letters(tmp_path) if not one.is_redriven] == [len(large)]
    assert len(reported) == 1


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
    """What is for Firehose is in no Kinesis stream's place, and JSON of a row is not what its stream holds."""
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


def test_half_a_line_of_the_notes_does_not_spoil_the_next(
    emulator: RunningEmulator, options: AwsOptions, tmp_path: Path
) -> None:
    """As a full disk, or a cut of the power, leaves it: the letter of that line is written once more, no other is."""
    make_stream(emulator, "noted")
    keep(tmp_path, letter(b"1", "noted"), letter(b"2", "noted"), letter(b"3", "noted"))
    redrive(tmp_path, options, wanted=lambda one: one.data == b"1")
    (note,) = (one for one in (tmp_path / "_redriven").iterdir() if one.name.endswith(".json"))
    note.write_bytes(note.read_bytes()[:-20])
    for _ in range(2):
        redrive(tmp_path, options, wanted=lambda one: one.data != b"3")
    assert held(emulator, "noted") == [b"1", b"1", b"2"]


@pytest.mark.parametrize(("mode", "noted"), [(0o600, 0o600), (0o640, 0o640), (0o444, 0o644)])
def test_notes_are_as_private_as_the_letters(
    emulator: RunningEmulator, options: AwsOptions, tmp_path: Path, mode: int, noted: int
) -> None:
    """They hold the same records. A gateway's are its owner's alone. Their owner can add to them in any case."""
    make_stream(emulator, f"private-{mode}")
    keep(tmp_path, letter(b"secret", f"private-{mode}"))
    (tmp_path / "job-0-0.json").chmod(mode)
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
    """A micro-batch that runs again removes those of the time before."""
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
    emulator: RunningEmulator, options: AwsOptions, tmp_path: Path
) -> None:
    """They would be sent again each time."""
    make_stream(emulator, "not-noted")
    keep(tmp_path, letter(b"1", "not-noted"), name="a.json")
    keep(tmp_path, letter(b"2", "not-noted"), name="b.json")
    (tmp_path / "_redriven").mkdir()
    (tmp_path / "_redriven" / "b.json").symlink_to(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(OSError, match=r"b\.json"):
            redrive(tmp_path, options)
    assert held(emulator, "not-noted") == []


def test_a_summary_says_whether_kinesis_was_there(options: AwsOptions, tmp_path: Path) -> None:
    """Nothing listens on the discard port."""
    keep(tmp_path, letter(b"1", "nowhere"))
    summary = redrive(tmp_path, replace(options, endpoint_url="http://127.0.0.1:9"), max_attempts=1)
    assert (summary.failed, summary.is_unreachable) == ({"nowhere": 1}, True)
