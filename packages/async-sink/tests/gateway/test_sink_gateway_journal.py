"""The journal of a durable gateway: what is in it survives, whatever happened to the process or the disk."""

import asyncio
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink.errors import GatewayStorageError, JournalError
from penstock.async_sink.gateway import Journal, LeftoverJournal, find_leftover_journal
from penstock.async_sink.testing import settle, wait_until
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb

LOG = "journal.db-wal"
DATABASE = "journal.db"


def journal(folder: Path, **options: Any) -> Journal:
    return Journal(folder, **{"fsync": False, **options})


async def append(kept: Journal, content: bytes, destination: str = "flights") -> int:
    return await kept.append("kinesis", destination, "client", 1, content)


def copied(folder: Path, where: Path) -> Path:
    """What a power cut would leave now."""
    shutil.copytree(folder, where, dirs_exist_ok=True)
    return where


def contents(kept: Journal, destination: str = "flights") -> list[bytes]:
    return [record.content for record in kept.pending("kinesis", destination)]


async def test_what_was_accepted_and_not_settled_is_there_after_reopening(tmp_path: Path) -> None:
    """In order, by destination, with what is needed to write it."""
    first = journal(tmp_path, fsync=True)
    sequences = [await append(first, b"%d" % number) for number in range(4)]
    await append(first, b"other", "delays")
    first.settle(sequences[1])
    await first.close()
    second = journal(tmp_path)
    assert second.destinations() == [("kinesis", "delays"), ("kinesis", "flights")]
    assert contents(second) == [b"0", b"2", b"3"]
    assert second.destinations() == [("kinesis", "delays")]
    assert contents(second) == []
    (other,) = second.pending("kinesis", "delays")
    assert (other.client_id, other.weight, other.content) == ("client", 1, b"other")
    assert await append(second, b"new") > other.sequence
    await second.close()


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


async def three_groups(folder: Path, content: bytes = b"batch") -> tuple[bytes, list[int]]:
    """The log of three batches, each a transaction of its own, and where in it each ends."""
    await journal(folder).close()
    kept = journal(folder)
    ends = []
    for number in range(3):
        await append(kept, b"%s %d" % (content, number))
        ends.append((folder / LOG).stat().st_size)
    copied(folder, folder.parent / "cut")
    log = (folder.parent / "cut" / LOG).read_bytes()
    await kept.close()
    return log, ends


@pytest.mark.parametrize("tail", ["missing", "zeros", "noise", "old"])
async def test_a_power_cut_within_a_group_never_keeps_the_gateway_from_starting(tmp_path: Path, tail: str) -> None:
    """Wherever the log is cut off or spoilt from: each whole group before is there, and nothing of the rest."""
    log, ends = await three_groups(tmp_path / "kept")
    cut = tmp_path / "cut"
    older, _ = await three_groups(tmp_path / "older" / "kept", b"BATCH")
    database = (cut / DATABASE).read_bytes()
    generator = random.Random(7)
    places = {*range(0, len(log), 797), *(end + near for end in (0, *ends) for near in range(-30, 60))}
    # SQLite writes the log's head before it writes anything after that.
    first = 32 if tail == "old" else 0
    for place in sorted(place for place in places if first <= place < len(log)):
        rest = len(log) - place
        # The log begins anew without being made shorter: what it held before follows.
        spoilt = {"missing": b"", "zeros": bytes(rest), "noise": generator.randbytes(rest), "old": older[place:]}[tail]
        (cut / DATABASE).write_bytes(database)
        found = log[:place] + spoilt
        (cut / LOG).write_bytes(found)
        again = journal(cut)
        whole = sum(found[:end] == log[:end] for end in ends)
        assert contents(again) == [b"batch %d" % number for number in range(whole)]
        await append(again, b"after")
        await again.close()


async def test_damage_before_the_last_group_is_an_error(tmp_path: Path) -> None:
    """Whichever byte of a group that is followed by two others is damaged: nothing is left out without a word."""
    log, ends = await three_groups(tmp_path / "kept")
    cut = tmp_path / "cut"
    for place in (32, 36, 40, 50, 60, 500, ends[0] // 2, ends[0] - 1):
        damaged = log[:place] + bytes([log[place] ^ 1]) + log[place + 1 :]
        (cut / LOG).write_bytes(damaged)
        with pytest.raises(JournalError, match="is damaged") as caught:
            journal(cut)
        assert caught.value.name == str(cut / LOG)


async def test_a_damaged_batch_is_an_error_that_names_it(tmp_path: Path) -> None:
    """SQLite has no checksums of its own in a database."""
    kept = journal(tmp_path)
    for number in range(3):
        await append(kept, b"batch %d" % number * 10)
    await kept.close()
    path = tmp_path / DATABASE
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"batch 1batch 1", b"batch 1batch 7"))
    with pytest.raises(JournalError, match="checksum of batch 2") as caught:
        journal(tmp_path)
    assert caught.value.name == str(path)
    path.write_bytes(whole[:5_000])
    with pytest.raises(JournalError, match="is damaged"):
        journal(tmp_path)


@pytest.mark.parametrize(
    "damage",
    ["sequence = 2", "kind = 'sqs'", "destination = 'delays'", "client_id = 'd'", "weight = 7", "content = x'00'"],
)
async def test_the_checksum_covers_all_of_a_batch(tmp_path: Path, damage: str) -> None:
    """A batch is neither written to another destination than its own nor answered for another client."""
    kept = journal(tmp_path)
    await append(kept, b"batch")
    await kept.close()
    with sqlite3.connect(tmp_path / DATABASE) as database:
        database.execute(f"UPDATE batch SET {damage}")
    database.close()
    with pytest.raises(JournalError, match="is damaged: the checksum of batch"):
        journal(tmp_path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE batch SET content = 'text'", "is damaged: batch 1 cannot be read"),
        ("UPDATE batch SET weight = 'heavy'", "is damaged: batch 1 cannot be read"),
        ("UPDATE batch SET destination = x'ff'", "is damaged: batch 1 cannot be read"),
        ("UPDATE batch SET client_id = CAST(x'ff' AS TEXT)", "is damaged"),
        (b"NOT NULL", "is damaged"),
    ],
    ids=["content", "weight", "blob", "no text", "schema"],
)
async def test_damage_that_sqlite_takes_for_another_type_is_damage(
    tmp_path: Path, damage: str | bytes, words: str
) -> None:
    """Also where the damaged bytes are in SQLite's own message, which is not text then."""
    kept = journal(tmp_path)
    await append(kept, b"batch")
    await kept.close()
    if isinstance(damage, str):
        with sqlite3.connect(tmp_path / DATABASE) as database:
            database.execute(damage)
        database.close()
    else:
        whole = (tmp_path / DATABASE).read_bytes()
        (tmp_path / DATABASE).write_bytes(whole.replace(damage, b"NOT NU\xffL", 1))
        left = find_leftover_journal(tmp_path)
        assert left is not None
        assert left.trouble is not None
        assert not left.remove()
    with pytest.raises(JournalError, match=words):
        journal(tmp_path)


@pytest.mark.parametrize("version", [3, 5])
async def test_files_of_other_versions_and_other_origin_are_refused(tmp_path: Path, version: int) -> None:
    """Nothing is written to them."""
    await journal(tmp_path).close()
    with sqlite3.connect(tmp_path / DATABASE) as database:
        database.execute(f"PRAGMA user_version = {version}")
    database.close()
    with pytest.raises(
        JournalError, match=rf"has version {version}, this release reads version 4.*start the release that wrote it"
    ):
        journal(tmp_path)
    (tmp_path / DATABASE).write_bytes(b"GIF89a" * 100)
    with pytest.raises(JournalError, match="not a database"):
        journal(tmp_path)


def test_a_journal_of_the_release_before_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """It may hold batches that were acknowledged."""
    old = tmp_path / "journal-00000001.log"
    # As that release wrote it for one batch of the client "c" to the stream "flights".
    written = bytes.fromhex(
        "5053474a020000001a000000840640663c2447ba970101a76b696e65736973a7666c6967687473a16301c4026869"
    )
    old.write_bytes(written)
    with pytest.raises(JournalError, match="start the release that wrote it with this folder") as caught:
        journal(tmp_path)
    assert caught.value.name == str(old)
    assert os.listdir(tmp_path) == [old.name]
    assert old.read_bytes() == written


async def test_a_journal_that_nobody_has_is_removed_once_all_of_it_is_written(tmp_path: Path) -> None:
    """Never what is acknowledged and not written, nor what a gateway has open, nor entries that were refused."""
    folder = tmp_path / "journal"
    assert find_leftover_journal(tmp_path) is None
    first = journal(folder)
    sequence = await append(first, b"batch 1")
    assert find_leftover_journal(folder) is None
    await first.close()
    found = find_leftover_journal(folder)
    assert found is not None
    assert (found.pending_batches, found.trouble, found.remove()) == (1, None, False)
    assert found.nbytes > len(b"batch 1")
    second = journal(folder)
    assert contents(second) == [b"batch 1"]
    second.settle(sequence)
    await second.close()
    (folder / "rejected.jsonl").write_text("{}")
    third = journal(folder)
    found = LeftoverJournal(folder, 0, 0, 0.0, None)
    assert not found.remove()
    await third.close()
    assert found.remove()
    assert os.listdir(folder) == ["rejected.jsonl"]
    (folder / "journal-00000001.log").touch()
    found = find_leftover_journal(folder)
    assert found is not None
    assert "start the release that wrote it" in str(found.trouble)
    assert not found.remove()


async def test_one_process_has_the_folder(tmp_path: Path) -> None:
    """A second gateway is refused, until the first one is gone."""
    first = journal(tmp_path)
    with pytest.raises(JournalError, match="in use"):
        journal(tmp_path)
    await first.close()
    await journal(tmp_path).close()


async def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    """What could not be kept is refused; what was kept is there, and its room is used again when it is settled."""
    kept = journal(tmp_path)
    sequences = [await append(kept, b"%03d" % number * 10_000) for number in range(10)]
    (pages,) = kept._database.execute("PRAGMA page_count").fetchone()
    kept._database.execute(f"PRAGMA max_page_count = {pages}")
    for _ in range(2):
        with pytest.raises(GatewayStorageError, match="full; make room on its disk") as caught:
            await append(kept, b"no room" * 10_000)
        assert str(tmp_path) in str(caught.value)
    assert kept.pending_batches == 10
    for sequence in sequences[:4]:
        kept.settle(sequence)
    await append(kept, b"010" * 10_000)
    await kept.close()
    again = journal(tmp_path)
    assert [content[:3] for content in contents(again)] == [b"%03d" % number for number in range(4, 11)]
    await again.close()


ON_A_SMALL_DISK = """
import asyncio, random, sys
from pathlib import Path
from penstock.async_sink.errors import GatewayStorageError
from penstock.async_sink.gateway import Journal

async def main(folder, seed):
    generator = random.Random(seed)
    live, refused, number = {}, 0, 0
    kept = Journal(folder)
    for restart in range(6):
        full = 0
        while full < 3:
            content = generator.randbytes(generator.choice((100, 5_000, 60_000)))
            try:
                number = await kept.append("kinesis", "flights", "c", 1, content)
                live[number] = content
            except GatewayStorageError as error:
                assert "make room" in str(error), error
                refused, full = refused + 1, full + 1
            if generator.random() < 0.3 and live:
                gone = generator.choice(list(live))
                kept.settle(gone)
                del live[gone]
        if generator.random() < 0.5:
            # Others take what is left of the disk.
            filling = folder / "others"
            with filling.open("ab", buffering=0) as file:
                try:
                    while file.write(bytes(4_096)):
                        pass
                except OSError:
                    pass
        for gone in list(live)[: len(live) * generator.choice((0, 1, 3, 4)) // 4]:
            kept.settle(gone)
            del live[gone]
        await kept.close()
        (folder / "others").unlink(missing_ok=True)
        kept = Journal(folder)
        found = {batch.sequence: batch.content for batch in kept.pending("kinesis", "flights")}
        assert found == live, (sorted(found), sorted(live))
        print(restart, len(live), refused)
    for gone in live:
        kept.settle(gone)
    for size in (200_000, 1_000):
        kept.settle(await kept.append("kinesis", "flights", "c", 1, bytes(size)))
    await kept.close()
    print("done")

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_small_disk_that_was_full_is_used_again(tmp_path: Path, seed: int) -> None:
    """2 MiB of a real file system: nothing acknowledged is lost, settled batches go, and there is room again."""
    mounted = 'mount -t tmpfs -o size=2m tmpfs "$0" && exec "$@"'
    if subprocess.run(["unshare", "-rm", "sh", "-c", mounted, str(tmp_path), "true"], check=False).returncode:
        pytest.skip("needs a name space of its own, to mount a small disk in")
    command = [sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path), str(seed)]
    ended = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mounted, str(tmp_path), *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2_000:]
    assert ended.stdout.endswith("done\n")


async def test_room_is_used_again(tmp_path: Path) -> None:
    """One destination that stands still does not keep the room of the others' batches."""
    kept = journal(tmp_path)
    kept._database.execute("PRAGMA wal_autocheckpoint = 8")
    stuck = await append(kept, b"stuck", "delays")
    for number in range(400):
        kept.settle(await append(kept, b"%03d" % number + b"x" * 10_000))
    await append(kept, b"last")
    assert size_of(tmp_path) < 1_000_000
    await kept.close()
    again = journal(tmp_path)
    assert contents(again, "delays") == [b"stuck"]
    assert contents(again) == [b"last"]
    again.settle(stuck)
    await again.close()


async def test_batches_that_are_given_back_are_given_out_again(tmp_path: Path) -> None:
    """As when a destination fails and is opened anew."""
    kept = journal(tmp_path)
    sequence = await append(kept, b"1")
    assert contents(kept) == []
    kept.release(sequence)
    assert contents(kept) == [b"1"]
    kept.settle(sequence)
    kept.release(sequence + 1)
    assert contents(kept) == []
    await kept.close()


async def test_entries_that_were_refused_after_their_acknowledgement_are_kept(tmp_path: Path) -> None:
    """In a file of lines, with the destination's words."""
    kept = journal(tmp_path)
    kept.reject("kinesis", "flights", "c", pb.Entry(data=b"bad"), EntryFailure(0, "Poison", "no\ngood"))
    await kept.close()
    (line,) = (tmp_path / "rejected.jsonl").read_text().splitlines()
    assert '"Poison"' in line


async def test_names_and_bytes_of_any_kind_survive(tmp_path: Path) -> None:
    """Non-ASCII names, and any bytes."""
    kept = journal(tmp_path)
    await kept.append("sqs", "рейсы", "ключ", 3, bytes(range(256)))
    await kept.close()
    again = journal(tmp_path)
    assert again.pending("sqs", "рейсы") == [(1, "sqs", "рейсы", "ключ", 3, bytes(range(256)))]
    await again.close()


async def test_a_batch_whose_client_breaks_off_before_it_is_kept_is_not_kept(tmp_path: Path) -> None:
    """Neither while it is being written nor while it waits for that: nobody would ever write it to its destination."""
    kept = journal(tmp_path)
    with kept._busy:
        writing = asyncio.create_task(append(kept, b"being written"))
        await wait_until(lambda: not kept._waiting and kept._task is not None)
        waiting = asyncio.create_task(append(kept, b"waiting"))
        await settle()
        for task in (writing, waiting):
            task.cancel()
        await asyncio.gather(writing, waiting, return_exceptions=True)
    await append(kept, b"whole")
    await wait_until(lambda: kept.pending_batches == 1)
    await kept.close()
    again = journal(tmp_path)
    assert contents(again) == [b"whole"]
    await again.close()


async def test_half_a_line_about_a_refused_entry_does_not_spoil_the_next(tmp_path: Path) -> None:
    """A power cut may leave one."""
    (tmp_path / "rejected.jsonl").write_text('{"time": 1, "ki')
    kept = journal(tmp_path)
    for code in ("Poison", "Other"):
        kept.reject("kinesis", "flights", "c", pb.Entry(data=b"bad"), EntryFailure(0, code))
        await append(kept, b"1")
    await kept.close()
    _, *lines = (tmp_path / "rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["error_code"] for line in lines] == ["Poison", "Other"]


async def test_what_is_settled_while_the_last_batch_is_written_is_not_written_again(tmp_path: Path) -> None:
    """As the last answers before a gateway ends: its successor would send those batches a second time."""
    kept = journal(tmp_path)
    first = await append(kept, b"settled")
    with kept._busy:
        writing = asyncio.create_task(append(kept, b"pending"))
        await wait_until(lambda: bool(kept._in_hand - {first}) and not kept._waiting)
        kept.settle(first)
        closing = asyncio.create_task(kept.close())
        await settle()
    await asyncio.gather(writing, closing)
    again = journal(tmp_path)
    assert contents(again) == [b"pending"]
    await again.close()
