"""Shard readers as tasks of a session: a query reads by them, and nothing is left of them."""

import asyncio
import base64
import json
import logging
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.emulator.testing import RunningEmulator
from penstock.registration import AnnouncedReader, ReaderFiles
from penstock.spark_plugin import ExecutorReader, KinesisOptions, kinesis_progress, start_readers
from penstock.spark_plugin._options.kinesis_options import check_beside_readers
from penstock.spark_plugin._reading.executors import readers as readers_module
from penstock.spark_plugin.errors import ExecutorReadersError, OptionError
from penstock.spark_plugin.testing import endpoint_options


@pytest.fixture
def aws(kinesis: RunningEmulator) -> dict[str, str]:
    """How readers find the embedded Kinesis."""
    options = endpoint_options(kinesis.endpoint_url, "any")
    del options["streamName"]
    return options


@contextmanager
def following(
    spark: SparkSession, collected: Any, checkpoint: Path, options: dict[str, str]
) -> Iterator[StreamingQuery]:
    frame = spark.readStream.format("kinesis").options(**options).load()
    writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        yield query
    finally:
        query.stop()


def is_answered(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def announced() -> Sequence[AnnouncedReader]:
    """The readers that a console of this user would see."""

    async def ask() -> Sequence[AnnouncedReader]:
        return await ReaderFiles().readers()

    return asyncio.run(ask())


def is_alive(pid: int) -> bool:
    """Whether it still runs: a worker that Spark keeps for the next task does."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def decoded(text: str) -> Iterator[bytes]:
    for found in re.finditer(r"[A-Za-z0-9+/]{40,}={0,2}", text):
        with suppress(ValueError):
            yield base64.b64decode(found[0] + "=" * (-len(found[0]) % 4))


def memory(reader: ExecutorReader) -> Path:
    """The folder of its socket and of its shared memory."""
    assert reader.socket is not None
    return Path(reader.socket).parent


def listening(pid: int) -> bool:
    """Whether the process has a listening TCP socket."""
    inodes = set()
    for one in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            inodes.add(os.readlink(one))
        except OSError:
            continue
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(f"socket:[{fields[9]}]" in inodes for fields in lines if fields[3] == "0A")


def put_large(source: Any, count: int) -> None:
    """Put records of 5 kB, all into one shard."""
    records = [{"Data": b"x" * 5000, "PartitionKey": "k"}] * count
    answer = source.client.put_records(StreamName=source.name, Records=records)
    assert not answer["FailedRecordCount"]
    source.put_keys |= {(one["ShardId"], one["SequenceNumber"]): b"x" * 5000 for one in answer["Records"]}


@pytest.mark.parametrize("publisher", ["efo"])
def test_a_query_reads_by_the_readers_of_its_session(
    spark: SparkSession,
    aws: dict[str, str],
    make_stream: Callable[[int], Any],
    collected: Any,
    until: Callable[..., None],
    tmp_path: Path,
    publisher: str,
) -> None:
    """Every row once, by a reader that is a task; when both have stopped, nothing is left.

    Tasks of its host take large batches from its memory, as they do from a reader on the driver.
    """
    source = make_stream(2)
    options = source.options(initialPosition="TRIM_HORIZON", recordPublisher=publisher)
    source.put(100)
    with start_readers(spark, count=1, options=aws) as readers:
        (reader,) = readers.readers
        assert readers.addresses == [reader.address]
        assert reader.address.startswith("127.0.0.1:")
        assert is_answered(reader.address)
        assert memory(reader).is_dir()
        with following(spark, collected, tmp_path / "checkpoint", options) as query:
            until(lambda: len(collected.keys) >= 100, "the first rows do not come", query=query)
            assert [*memory(reader).glob("*.block")] == []
            put_large(source, 100)
            until(lambda: len(collected.keys) >= 200, "further rows do not come", query=query)
            assert [*memory(reader).glob("*.block")] != []
            until(lambda: bool(kinesis_progress(query)), "no progress", query=query)
            assert {one.reader for one in kinesis_progress(query)} == {reader.address}
            until(lambda: [one.address for one in announced()] == [reader.address], "the reader is not announced")
            assert [(one.is_asked, one.shards, one.stream_names) for one in announced()] == [(False, 2, (source.name,))]
        until(lambda: not announced(), "a reader is announced for a query that has ended")
        assert collected.data == source.put_keys
        assert len(collected.keys) == 200
    assert readers.readers == ()
    assert not is_answered(reader.address)
    assert not is_alive(reader.pid) or not listening(reader.pid)
    assert not memory(reader).exists()
    until(lambda: source.consumers() == [], "a stream consumer is left")


def test_a_killed_reader_is_started_again_where_a_slot_is_left_beside_it(
    spark: SparkSession,
    aws: dict[str, str],
    make_stream: Callable[[int], Any],
    collected: Any,
    until: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It waits while it would take the last slot, and says so; the query waits for it, and has every row once."""
    source = make_stream(2)
    options = source.options(initialPosition="TRIM_HORIZON")
    source.put(50)
    with start_readers(spark, count=1, options=aws) as readers:
        (first,) = readers.readers
        with following(spark, collected, tmp_path / "checkpoint", options) as query:
            until(lambda: len(collected.keys) >= 50, "the first rows do not come", query=query)
            # As after the loss of an executor, with all of its slots.
            monkeypatch.setattr(readers_module, "task_slots", lambda _: 1)
            os.kill(first.pid, signal.SIGKILL)
            until(lambda: readers.readers == (), "its loss is not noticed", query=query)
            until(lambda: "waits for an executor" in caplog.text, "it does not wait", query=query)
            source.put(50)
            monkeypatch.undo()
            until(lambda: len(readers.readers) == 1, "no other takes its place", query=query)
            until(lambda: len(collected.keys) >= 100, "rows are missing", query=query)
            assert readers.readers[0].address != first.address
        assert collected.data == source.put_keys
        assert len(collected.keys) == 100
        # Spark ends nothing in order that was killed: the next reader of the machine removes what it left.
        assert not memory(first).exists()


def test_incompatible_session_settings_are_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of tasks that never end, and a job group that is every job's."""
    conf = spark.sparkContext.getConf().set("spark.speculation", "true")
    conf.set("spark.speculation.task.duration.threshold", "1s")
    monkeypatch.setattr(spark.sparkContext, "getConf", lambda: conf)
    with pytest.raises(ExecutorReadersError, match="a copy of each reader"):
        start_readers(spark, count=1)
    monkeypatch.undo()
    monkeypatch.setattr(SparkContext, "_gateway", object())
    with pytest.raises(ExecutorReadersError, match="PYSPARK_PIN_THREAD"):
        start_readers(spark, count=1)


def test_readers_leave_a_slot_to_queries(spark: SparkSession, aws: dict[str, str]) -> None:
    """As many as there are slots would leave the queries none: that is refused, with both numbers and the cure."""
    with pytest.raises(
        ExecutorReadersError, match=r"NO_FREE_TASK_SLOT.*2 shard readers .* has 2: .*local\[4\]"
    ) as told:
        start_readers(spark, count=2, options=aws)
    assert (told.value.facts["count"], told.value.facts["slots"]) == (2, 2)
    with pytest.raises(ExecutorReadersError, match="at least one"):
        start_readers(spark, count=0)


def test_options_that_readers_cannot_use_are_refused(spark: SparkSession, aws: dict[str, str]) -> None:
    """Options of queries, values that are none, and a second fleet beside the first."""
    with pytest.raises(
        OptionError, match=r"MISPLACED_OPTION.*'retryPatience' belongs to a query, and this is start_readers"
    ):
        start_readers(spark, count=1, options=aws | {"retryPatience": "5s"})
    with pytest.raises(OptionError, match=r"INVALID_OPTION.*bufferBytes"):
        start_readers(spark, count=1, options=aws | {"bufferBytes": "many"})
    with start_readers(spark, count=1, options=aws), pytest.raises(ExecutorReadersError, match="already"):
        start_readers(spark, count=1, options=aws)


def test_a_reader_that_cannot_start_says_why(spark: SparkSession) -> None:
    """Its own words are in the error, and others may be started in its place."""
    with pytest.raises(ExecutorReadersError, match=r"AwsOptionError.*no-such-profile"):
        start_readers(spark, count=1, options={"region": "us-east-1", "awsProfile": "no-such-profile"})


def test_token_is_never_shown(spark: SparkSession, aws: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """Neither the readers, nor what goes to the JVM, nor the log at its loudest has a secret."""
    caplog.set_level(logging.DEBUG)
    with start_readers(spark, count=1, options=aws | {"awsSecretAccessKey": "hush-hush-key"}) as readers:
        folder = Path(spark.sparkContext._jvm.org.apache.spark.SparkFiles.getRootDirectory())  # type: ignore[union-attr]
        file = folder / "penstock-readers" / "fleet.json"
        assert file.stat().st_mode & 0o077 == 0
        assert file.parent.stat().st_mode & 0o077 == 0
        token = json.loads(file.read_text())["token"]
        assert "hush" not in file.read_text()
        assert "hush" not in repr(readers)
        assert "setJobGroup" in caplog.text  # py4j tells all that is said to the JVM
        for secret in ("hush-hush-key", token):
            # Pickled functions are said to the JVM in base64, and secrets would be somewhere in them.
            assert secret not in caplog.text
            assert not any(secret.encode() in part for part in decoded(caplog.text))
        assert repr(readers) == f"ExecutorReaders(count=1, addresses={readers.addresses})"
    assert not file.parent.exists()


def test_query_fails_when_its_readers_are_stopped(
    spark: SparkSession,
    aws: dict[str, str],
    make_stream: Callable[[int], Any],
    collected: Any,
    until: Callable[..., None],
    tmp_path: Path,
) -> None:
    """A query whose readers are stopped fails at once."""
    source = make_stream(1)
    source.put(10)
    options = source.options(initialPosition="TRIM_HORIZON")
    with (
        start_readers(spark, count=1, options=aws) as readers,
        following(spark, collected, tmp_path / "left", options) as query,
    ):
        until(lambda: bool(kinesis_progress(query)), "no progress", query=query)
        readers.stop()
        until(lambda: query.exception() is not None, "a query continues without its readers")
        assert "READERS_STOPPED" in str(query.exception())


def test_options_without_effect_beside_readers_are_refused() -> None:
    """A buffer belongs to the readers, and a query does not start a reader of its own beside them."""
    for name, text, cure in (("bufferBytes", "64m", "start_readers"), ("readerPort", "5", "reader of its own")):
        options = KinesisOptions.parse({"streamName": "s", name: text}, environ={})
        with pytest.raises(OptionError, match=cure) as caught:
            check_beside_readers(options)
        assert caught.value.code == "CONTRADICTORY_OPTIONS"
        assert (caught.value.option, caught.value.facts["other"]) == (name, "executorReaders")


def test_a_client_of_spark_connect_is_shown_another_way() -> None:
    """It runs no tasks; the error names what does the same."""

    class Client:
        pass

    with pytest.raises(ExecutorReadersError, match=r"Spark Connect .* readerEndpoint"):
        start_readers(Client(), count=1)  # type: ignore[arg-type]
