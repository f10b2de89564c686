"""`penstock doctor` on the Spark session, the reader's address and the machine: each is broken on purpose."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from doctor_world import has_cure, the, world

from penstock.cli import Verdict
from penstock.cli._doctor._machine import (
    check_state_folder,
)
from penstock.cli._doctor._session import (
    check_reader_address,
    check_session_settings,
    default_spark_conf,
    read_spark_conf,
)
from penstock.spark_plugin import recommended_settings

PROBLEM, WARNING, OK, SKIPPED = Verdict.PROBLEM, Verdict.WARNING, Verdict.OK, Verdict.SKIPPED
CLUSTER = {"spark.master": "spark://master:7077"}


def test_session_settings_are_compared_with_the_recommended(tmp_path: Path) -> None:
    """As a spark-defaults.conf has them, with blanks or an equals sign; each missing setting is reported."""
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
