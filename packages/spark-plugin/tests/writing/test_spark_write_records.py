import json
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, DoubleType, IntegerType, LongType, StringType, StructField, StructType
from s3_servers import KEYS, running_s3, s3_client

from penstock.async_sink import FirehoseSink, KinesisStreamsSink
from penstock.spark_plugin import KinesisDataSource, KinesisOptions, split_record_id
from penstock.spark_plugin._schema import SinkColumns, sink_columns
from penstock.spark_plugin._writing.dead_letters import DeadLetterFile, dead_letter_folder, letter
from penstock.spark_plugin._writing.records import BadRow, RecordMaker, WriteAttempt, bad_rows, by_stream
from penstock.spark_plugin.errors import OptionError, SchemaError, SparkPluginError

ATTEMPT = WriteAttempt("query", 7, 3, 0)


def schema(**columns: type[DataType]) -> StructType:
    return StructType([StructField(name, kind()) for name, kind in columns.items()])


def options(**given: str) -> KinesisOptions:
    return KinesisOptions.parse(given, environ={}, stream_required=False)


def test_the_value_is_all_columns_but_those_that_steer_the_record() -> None:
    """The key's own column may be in the value; `valueColumns` says otherwise, and then others may stay out."""
    frame = schema(id=LongType, partitionKey=StringType, streamName=StringType, text=StringType)
    assert sink_columns(frame, options(valueFormat="json")) == SinkColumns(None, 1, None, 2, (0, 3))
    by_id = options(streamName="s", valueFormat="json", partitionKeyColumn="id")
    assert sink_columns(schema(id=LongType, text=StringType), by_id) == SinkColumns(None, 0, None, None, (0, 1))
    chosen = options(streamName="s", valueFormat="csv", valueColumns="text,partitionKey")
    found = sink_columns(schema(id=LongType, partitionKey=StringType, text=StringType), chosen)
    assert found == SinkColumns(None, 1, None, None, (2, 1))


@pytest.mark.parametrize(
    ("given", "columns", "error", "named"),
    [
        ({}, {"data": StringType, "partitionKey": StringType}, OptionError, "streamName"),
        ({"streamName": "s"}, {"data": StringType, "partitionKey": DoubleType}, SchemaError, "partitionKeyColumn|cast"),
        (
            {"streamName": "s", "valueFormat": "csv", "valueColumns": "a"},
            {"partitionKey": StringType},
            SchemaError,
            "a",
        ),
        ({"streamName": "s", "valueFormat": "json"}, {"partitionKey": StringType}, SchemaError, "valueColumns"),
        (
            {"streamName": "s", "valueFormat": "json", "recordIds": "true"},
            {"recordId": StringType, "partitionKey": StringType},
            SchemaError,
            "recordIds",
        ),
        (
            {"streamName": "s"},
            {"data": StringType, "partitionKey": StringType, "x": StringType},
            SchemaError,
            "valueFormat",
        ),
        ({"streamName": "s"}, {"data": IntegerType, "partitionKey": StringType}, SchemaError, "cast"),
    ],
)
def test_mistakes_are_reported_when_the_write_is_planned(
    given: dict[str, str], columns: dict[str, type[DataType]], error: type[Exception], named: str
) -> None:
    """Each names the column or option, and what to do."""
    source = KinesisDataSource({"region": "us-east-1", **given})
    with pytest.raises(error, match=named):
        source.writer(schema(**columns), overwrite=False)


def test_records_get_ids_delimiters_and_random_keys() -> None:
    """Ids count the partition's rows over its record batches; without a format they are a line before the data."""
    given = options(streamName="s", recordIds="true", recordDelimiter="\\r\\n", randomPartitionKey="true")
    maker = RecordMaker(SinkColumns(0, None, None), given, id_prefix=ATTEMPT.record_prefix)
    batches = [maker.of(pa.record_batch({"data": rows})).batch for rows in (["a", "b"], ["c"])]
    assert [batch.column("data").to_pylist() for batch in batches] == [
        [b"query-7-3-0\na\r\n", b"query-7-3-1\nb\r\n"],
        [b"query-7-3-2\nc\r\n"],
    ]
    first, second = batches[0].column("partitionKey").to_pylist()
    assert first != second
    assert split_record_id(b"query-7-3-2\nc") == ("query-7-3-2", b"c")
    with pytest.raises(ValueError, match="record id"):
        split_record_id(b"c")
    in_value = options(streamName="s", recordIds="true", valueFormat="json")
    maker = RecordMaker(SinkColumns(None, 0, None, None, (0,)), in_value, id_prefix=ATTEMPT.record_prefix)
    value = maker.of(pa.record_batch({"id": [5]})).batch
    assert value.to_pylist() == [{"data": b'{"recordId":"query-7-3-0","id":5}', "partitionKey": "5"}]


def test_rows_go_to_their_streams_in_their_order() -> None:
    """A null means the stream of the options; without one it has none."""
    batch = pa.record_batch({"data": ["1", "2", "3"], "to": ["a", None, "a"]})
    given = options(randomPartitionKey="true")
    records = RecordMaker(SinkColumns(0, None, None, 1), given).of(batch)
    found = {stream: part.batch.column("data").to_pylist() for stream, part in by_stream(records, None)}
    assert found == {"a": [b"1", b"3"], None: [b"2"]}
    assert {stream for stream, _ in by_stream(records, "d")} == {"a", "d"}


def test_bad_rows_are_found_with_their_reasons() -> None:
    """Nulls, keys and hash keys out of range, and records that are too large, first thing first."""
    batch = pa.record_batch(
        {
            "data": pa.array([b"ok", None, b"x", b"x", b"x", b"x" * 20, b"x"]),
            "partitionKey": pa.array(["k", "k", None, "", "k" * 257, "k", "k"]),
            "explicitHashKey": pa.array([None, None, None, "1", None, None, "-1"]),
        }
    )
    found = bad_rows(batch, None, row_faults=KinesisStreamsSink.row_faults, max_record_bytes=20, needs_stream=False)
    assert [(one.index, one.reason.split()[1] if one.index != 5 else "large") for one in found] == [
        (1, "data"), (2, "partition"), (3, "partition"), (4, "partition"), (5, "large"), (6, "explicit"),
    ]  # fmt: skip
    data = pa.record_batch({"data": [b"", b"x"]})
    found = bad_rows(
        data, pa.array(["a", None]), row_faults=FirehoseSink.row_faults, max_record_bytes=9, needs_stream=True
    )
    assert [one.index for one in found] == [0, 1]
    assert isinstance(found[0], BadRow)


def test_dead_letters_appear_whole_and_replace_those_of_the_run_before(tmp_path: Path) -> None:
    """One file per query, micro-batch and partition; nothing before the task has ended, nothing of a failed task."""
    first = DeadLetterFile(tmp_path / "dead", ATTEMPT)
    first.add([letter(b"\xff", {"partitionKey": "k"}, "s", reason="refused", error_code="No", attempts=2)])
    assert [path for path in (tmp_path / "dead").iterdir() if not path.name.startswith(".")] == []
    first.commit()
    again = DeadLetterFile(tmp_path / "dead", ATTEMPT)
    again.add([letter(b"2", {"partitionKey": "k"}, "s", reason="bad row", row=0)] * 2)
    failed = DeadLetterFile(tmp_path / "dead", WriteAttempt("query", 7, 3, 1))
    failed.add([letter(b"3", {"partitionKey": "k"}, "s", reason="bad row", row=0)])
    failed.discard()
    again.commit()
    (path,) = (tmp_path / "dead").iterdir()
    assert path.name == "query-0000000007-00003.json"
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert [b64decode(one["data"]) for one in read] == [b"2", b"2"]
    assert (again.count, read[0]["reason"], read[0]["row"]) == (2, "bad row", 0)


def test_dead_letters_on_s3_appear_whole_and_replace_those_of_the_run_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the keys of the write, at the endpoint of S3 in the environment, not the one of the streams."""
    with running_s3() as endpoint_url:
        client = s3_client(endpoint_url)
        client.create_bucket(Bucket="letters")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint_url)
        folder = dead_letter_folder("s3a://letters/dead/", {**KEYS, "endpointUrl": "http://127.0.0.1:1"})

        def held() -> dict[str, bytes]:
            found = client.list_objects_v2(Bucket="letters").get("Contents", ())
            return {one["Key"]: client.get_object(Bucket="letters", Key=one["Key"])["Body"].read() for one in found}

        for text in ("first", "second"):
            file = DeadLetterFile(folder, ATTEMPT)
            file.add([{"data": text}])
            assert text.encode() not in b"".join(held().values())
            file.commit()
            (name,) = (key for key, data in held().items() if text.encode() in data)
            assert name == "dead/query-0000000007-00003.json"
        failed = DeadLetterFile(folder, WriteAttempt("query", 7, 4, 1))
        failed.add([{"data": "failed"}])
        failed.discard()
        assert name in held()
        DeadLetterFile(folder, replace(ATTEMPT, attempt=1)).commit()  # it has none this time
        assert name not in held()
        for run, count in (("1", 1), ("1", 2), ("2", 1)):
            named = DeadLetterFile(folder, WriteAttempt("job", 7, 3, 0, query="q", run=run, write=f"w{count}"))
            named.add([{"data": "of a foreachBatch"}])
            named.commit()
            assert sum(key.endswith(".json") for key in held()) == count
        gone = DeadLetterFile(dead_letter_folder("s3://no-such-bucket/dead", KEYS), ATTEMPT)
        gone.add([{"data": "x"}])
        with pytest.raises(
            SparkPluginError, match=r"DEAD_LETTERS_NOT_KEPT.*cannot be kept in s3://no-such-bucket/dead"
        ):
            gone.commit()
