"""`penstock doctor` on the Spark session, the reader's address and the machine: each is broken on purpose."""

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from doctor_world import has_cure, the, world

from penstock.cli import Verdict
from penstock.cli._doctor._machine import (
    LITTLE_DISK_BYTES,
    MUCH_DISK_BYTES,
    check_disk,
    check_open_files,
    check_state_folder,
    judge_disk,
    judge_open_files,
)
from penstock.cli._doctor._session import (
    check_reader_address,
    check_session_settings,
    check_time_zone,
    default_spark_conf,
    read_spark_conf,
)
from penstock.spark_plugin import recommended_settings

PROBLEM, WARNING, OK, SKIPPED = Verdict.PROBLEM, Verdict.WARNING, Verdict.OK, Verdict.SKIPPED
CLUSTER = {"spark.master": "spark://master:7077"}


def test_session_settings_are_compared_with_the_recommended(tmp_path: Path) -> None:
    """As a spark-defaults.conf has them, with blanks or an equals sign; each that is missing is told."""
    file = tmp_path / "spark-defaults.conf"
    right = recommended_settings()
    file.write_text(
        "# ours\n" + "".join(f"{name}   {value}\n" for name, value in right.items()) + "spark.master=local\n"
    )
    settings = read_spark_conf(file)
    assert settings == {**right, "spark.master": "local"}
    assert default_spark_conf({"SPARK_CONF_DIR": str(tmp_path)}) == file
    assert default_spark_conf({}) is None
    assert the(check_session_settings(world(spark_settings=settings))).verdict is OK
    findings = list(check_session_settings(world(spark_settings={})))
    assert len(findings) == len(right)
    assert all(has_cure(finding, WARNING, "configure(builder)") for finding in findings)
    assert the(check_session_settings(world())).verdict is SKIPPED


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"environ": {"PENSTOCK_READER_HOST": "127.0.0.1"}}, "PENSTOCK_READER_HOST"),
        ({"environ": {"SPARK_LOCAL_IP": "localhost"}}, "SPARK_LOCAL_IP"),
        ({"reader_host": "::1"}, "readerHost"),
    ],
)
def test_executors_cannot_come_to_loopback(options: dict[str, Any], word: str) -> None:
    """On a cluster it is a problem, whichever setting it comes from; in local mode it is not."""
    assert has_cure(the(check_reader_address(world(spark_settings=CLUSTER, **options))), PROBLEM, word, "loopback")
    assert the(check_reader_address(world(spark_settings={"spark.master": "local[2]"}, **options))).verdict is OK


def test_the_readers_address_is_this_machines() -> None:
    """A name that is not known is a problem, an address of another machine a warning."""
    for host in ("no-such-host.invalid", "a..b"):
        unknown = world(reader_host=host, spark_settings=CLUSTER)
        assert has_cure(the(check_reader_address(unknown)), PROBLEM, "cannot be resolved")
    foreign = world(reader_host="192.0.2.7", spark_settings=CLUSTER)
    assert has_cure(the(check_reader_address(foreign)), WARNING, "192.0.2.7")
    for surroundings in (world(reader_host="0.0.0.0", spark_settings=CLUSTER), world(spark_settings=CLUSTER), world()):
        assert the(check_reader_address(surroundings)).verdict is OK


def test_the_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that there is not is a problem, another than UTC worth a word."""
    assert has_cure(the(check_time_zone(world(environ={"TZ": "Mars/Olympus"}))), PROBLEM, "Mars/Olympus")
    try:
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert has_cure(the(check_time_zone(world())), WARNING, "JST", "spark.sql.session.timeZone")
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()
        assert the(check_time_zone(world())).verdict is OK
    finally:
        monkeypatch.undo()
        time.tzset()
    assert the(check_time_zone(world(spark_settings={"spark.sql.session.timeZone": "Asia/Tokyo"}))).verdict is OK


def test_the_state_folder_cannot_be_written(tmp_path: Path) -> None:
    """A file in its place, a damaged store; a folder that is not there yet is fine, and not made."""
    new = tmp_path / "a" / "b"
    assert the(check_state_folder(world(state_folder=new))).verdict is OK
    assert list(tmp_path.iterdir()) == []
    file = tmp_path / "file"
    file.write_text("")
    assert has_cure(the(check_state_folder(world(state_folder=file))), PROBLEM, "not a directory")
    store = tmp_path / "registry.db"
    sqlite3.connect(store).execute("CREATE TABLE leases (id)").connection.close()
    assert the(check_state_folder(world(state_folder=tmp_path))).verdict is OK
    store.write_bytes(b"this is not a database, whatever its name says" * 50)
    assert has_cure(the(check_state_folder(world(state_folder=tmp_path))), PROBLEM, "registry.db", "not a database")


def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    """Without the right to write."""
    tmp_path.chmod(0o500)
    user = os.geteuid()
    if user == 0:
        # Root may write everywhere.
        os.seteuid(65534)
    try:
        assert has_cure(the(check_state_folder(world(state_folder=tmp_path / "x"))), PROBLEM, "Permission denied")
    finally:
        os.seteuid(user)


def test_disk_and_open_files() -> None:
    """Little is a problem, not much a warning."""
    for free, verdict in ((LITTLE_DISK_BYTES - 1, PROBLEM), (MUCH_DISK_BYTES - 1, WARNING), (MUCH_DISK_BYTES, OK)):
        assert judge_disk("/tmp", free).verdict is verdict
    for limit, verdict in ((64, PROBLEM), (1024, WARNING), (65536, OK), (-1, OK)):
        assert judge_open_files(limit).verdict is verdict
    assert has_cure(the(check_disk(world(environ={"SPARK_LOCAL_DIRS": "/no/such/folder"}))), PROBLEM, "/no/such/folder")
    assert "free in" in the(check_disk(world())).text
    assert the(check_open_files(world())).check == "Open files"
