"""The data source `dynamodb-streams`: the emulator splits, disables and trims; moto has a DynamoDB behind it."""

import json
import uuid
from collections.abc import Callable, Iterator
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from patience import PATIENCE_SECONDS
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery
from werkzeug.serving import WSGIRequestHandler

from penstock.emulator.testing import OtherClock, RunningEmulator, running_emulator
from penstock.spark_plugin import CHANGE_SCHEMA, DynamoDbStreamsDataSource, KinesisDataSource, kinesis_progress
from penstock.spark_plugin._dynamodb_streams import dynamodb_options
from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin.errors import OptionError

DAY = 24 * 3600.0
ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/2026-01-31T00:00:00.000"
TTL = {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}
TRIM = {"initialPosition": "TRIM_HORIZON"}


class Table:
    """A table of the emulator, and the ids of the items that were put into it."""

    def __init__(self, emulator: RunningEmulator, clock: OtherClock) -> None:
        self.emulator, self.streams, self.clock = emulator, emulator.dynamodb_streams, clock
        self.name = f"orders-{uuid.uuid4().hex[:8]}"
        self.arn = self.enable()
        self.ids: list[str] = []

    def enable(self) -> str:
        return self.emulator.call(lambda: self.streams.enable(self.name))

    def disable(self) -> None:
        self.emulator.call(lambda: self.streams.disable(self.name))

    def put(self, count: int) -> None:
        for number in range(len(self.ids), len(self.ids) + count):
            keys = {"id": {"S": str(number)}}
            self.emulator.call(partial(self.streams.change, self.name, keys, new=keys))
            self.ids.append(str(number))

    def split(self, children: int = 2) -> list[str]:
        found = self.emulator.call(lambda: self.streams.split(self.name, children=children))
        # Lists are complete once children are some seconds old.
        self.clock.advance(11)
        return found

    def options(self, **options: str) -> dict[str, str]:
        return options_of(self.emulator.endpoint_url, tableName=self.name, **options)


def options_of(endpoint_url: str, **options: str) -> dict[str, str]:
    keys = {"awsAccessKeyId": "test", "awsSecretAccessKey": "test", "region": "us-east-1"}
    return {**keys, "endpointUrl": endpoint_url, **options}


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> OtherClock:
    """By the service's clock, a read ends after a minute of empty answers."""
    return OtherClock(0, rate=getattr(request, "param", 30))


@pytest.fixture
def table(clock: OtherClock) -> Iterator[Table]:
    with running_emulator(tls=False, clock=clock) as emulator:
        yield Table(emulator, clock)


class Changes:
    """Rows of a query by micro-batch: one that runs again replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.batches = {**self.batches, batch_id: frame.collect()}

    @property
    def rows(self) -> list[Row]:
        return [row for _, rows in sorted(self.batches.items()) for row in rows]

    @property
    def ids(self) -> list[str]:
        return [json.loads(row["keys"])["id"]["S"] for row in self.rows]


def start(
    spark: SparkSession, options: dict[str, str], changes: Changes, path: Path, *, live: bool = False
) -> StreamingQuery:
    frame = spark.readStream.format("dynamodb-streams").options(**options).load()
    writer = frame.writeStream.foreachBatch(changes).option("checkpointLocation", str(path / "checkpoint"))
    return (writer if live else writer.trigger(availableNow=True)).start()


def run(spark: SparkSession, options: dict[str, str], changes: Changes, path: Path) -> None:
    assert start(spark, options, changes, path).awaitTermination(PATIENCE_SECONDS)


def test_a_stream_is_followed_over_splits_and_restarts(
    spark: SparkSession, table: Table, until: Callable[..., None], tmp_path: Path
) -> None:
    """Every change once, parents before children; a new query begins with what comes."""
    changes = Changes()
    query = start(spark, table.options(), changes, tmp_path, live=True)
    until(lambda: bool(query.recentProgress), "the query does not run", query=query)
    table.put(10)
    until(lambda: len(changes.ids) == 10, "the first changes do not come", query=query)
    table.split()
    table.put(20)
    until(lambda: len(changes.ids) == 30, "the children's changes do not come", query=query)
    query.stop()
    table.split(children=1)
    table.put(10)
    query = start(spark, table.options(), changes, tmp_path, live=True)
    until(lambda: len(changes.ids) >= 40, lambda: f"{len(changes.ids)} of 40 changes came", query=query)
    query.stop()
    assert sorted(changes.ids, key=int) == table.ids
    order = [row["shardId"] for row in changes.rows]
    assert len(set(order)) == 4
    assert order[:10] == [order[0]] * 10
    assert order[0] not in order[10:]
    assert {row["streamArn"] for row in changes.rows} == {table.arn}


def test_a_bounded_read_gives_what_the_stream_holds(spark: SparkSession, table: Table) -> None:
    """It reads all shards, also closed ones, by the table's name or the stream's ARN; LATEST returns no rows."""
    table.put(5)
    table.split()
    table.put(5)
    frame = spark.read.format("dynamodb-streams").options(**table.options()).load()
    assert frame.schema == CHANGE_SCHEMA
    ids = frame.select(F.from_json("keys", "id struct<S: string>").id.S.alias("id"), "streamArn").collect()
    assert sorted((row.id for row in ids), key=int) == table.ids
    assert {row.streamArn for row in ids} == {table.arn}
    by_arn = options_of(table.emulator.endpoint_url, streamArn=table.arn)
    assert spark.read.format("dynamodb-streams").options(**by_arn).load().count() == 10
    latest = table.options(initialPosition="LATEST")
    assert spark.read.format("dynamodb-streams").options(**latest).load().count() == 0


def test_progress_says_that_a_tip_is_a_guess(
    spark: SparkSession, table: Table, until: Callable[..., None], tmp_path: Path
) -> None:
    """The number of shards is in the progress of a query that follows the stream."""
    changes = Changes()
    query = start(spark, table.options(**TRIM), changes, tmp_path, live=True)
    table.put(3)
    until(lambda: len(changes.ids) == 3, "the changes do not come", query=query)

    def is_guessed() -> bool:
        found = [one.numbers for one in kinesis_progress(query)]
        return any(one.shards_at_guessed_tip == one.shards_caught_up == one.shards == 1 for one in found)

    until(is_guessed, "no progress says that the tip is a guess", query=query)
    query.stop()


def test_a_deletion_by_ttl_says_so(spark: SparkSession, table: Table) -> None:
    """The column userIdentity tells it from one by a user."""
    keys = {"id": {"S": "a"}}
    item = {**keys, "n": {"N": "1.50"}}

    def put() -> None:
        table.streams.change(table.name, keys, new=item)
        table.streams.change(table.name, keys, new={**item, "n": {"N": "2"}}, old=item)
        table.streams.change(table.name, keys, old=item)
        table.streams.change(table.name, keys, old=item, user_identity=TTL)

    table.emulator.call(put)
    rows = spark.read.format("dynamodb-streams").options(**table.options()).load().orderBy("sequenceNumber").collect()
    assert [row.eventName for row in rows] == ["INSERT", "MODIFY", "REMOVE", "REMOVE"]
    assert [row.userIdentity and row.userIdentity.principalId for row in rows] == [None] * 3 + [TTL["PrincipalId"]]
    assert [row.newImage is None for row in rows] == [False, False, True, True]
    assert json.loads(rows[1].oldImage) == item
    assert rows[0].streamViewType == "NEW_AND_OLD_IMAGES"
    assert len({row.eventID for row in rows}) == 4


def test_changes_that_expired_unread_fail_the_query_by_name(
    spark: SparkSession, table: Table, clock: OtherClock, tmp_path: Path
) -> None:
    """The shard and the range; with failOnDataLoss=false the query continues with what is left."""
    changes = Changes()
    table.put(3)
    run(spark, table.options(**TRIM), changes, tmp_path)
    shard, last = changes.rows[-1]["shardId"], changes.rows[-1]["sequenceNumber"]
    table.put(3)
    clock.advance(DAY + 60)
    table.put(2)
    query = start(spark, table.options(**TRIM), changes, tmp_path, live=True)
    with pytest.raises(StreamingQueryException, match="DataLossError") as caught:
        query.awaitTermination(PATIENCE_SECONDS)
    assert shard in str(caught.value)
    assert last in str(caught.value)
    run(spark, table.options(**TRIM, failOnDataLoss="false"), changes, tmp_path)
    assert changes.ids == [*table.ids[:3], *table.ids[6:]]


@pytest.fixture
def moto_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its clock runs fast, as the emulator's does: reads of an open shard take a minute."""
    clock = OtherClock(0, rate=30)
    monkeypatch.setattr(
        WSGIRequestHandler, "date_time_string", lambda *_: formatdate(int(clock.time()), usegmt=True), raising=True
    )
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_the_changes_of_a_table_of_moto_are_read(spark: SparkSession, moto_url: str, tmp_path: Path) -> None:
    """By its own DynamoDB: items that are put, changed and deleted, over two runs and a bounded read."""
    keys: Any = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    dynamodb: Any = boto3.client("dynamodb", endpoint_url=moto_url, region_name="us-east-1", **keys)
    dynamodb.create_table(
        TableName="flights",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    for number in range(5):
        dynamodb.put_item(TableName="flights", Item={"id": {"S": str(number)}, "n": {"N": "1"}})
    options, changes = options_of(moto_url, tableName="flights", **TRIM), Changes()
    run(spark, options, changes, tmp_path)
    assert changes.ids == ["0", "1", "2", "3", "4"]
    dynamodb.put_item(TableName="flights", Item={"id": {"S": "0"}, "n": {"N": "2"}})
    dynamodb.delete_item(TableName="flights", Key={"id": {"S": "1"}})
    run(spark, options, changes, tmp_path)
    assert [(row.eventName, json.loads(row["keys"])["id"]["S"]) for row in changes.rows[5:]] == [
        ("MODIFY", "0"),
        ("REMOVE", "1"),
    ]
    assert json.loads(changes.rows[5].newImage)["n"] == {"N": "2"}
    assert spark.read.format("dynamodb-streams").options(**options).load().count() == 7


_REFUSED = {
    "recordPublisher": ("efo", "no enhanced fan-out"),
    "efoConsumerArn.orders": ("arn", "no enhanced fan-out"),
    "readerEndpoint": ("there:1", "read without services"),
    "sinkEndpoint": ("there:1", "reads the stream of a table"),
    "streamNamePattern": (".*", "tableName"),
    "initialTimestamp": ("2026-01-31", "no record by its time"),
    "columns": ("aws", "rows are changes"),
    "shardIds": ("shardId-1", "read whole"),
    "valueFormat": ("json", "reads the stream of a table"),
    "consumerMode": ("efo", "no enhanced fan-out"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_option_without_effect_is_refused_by_name(name: str) -> None:
    """As it was written, with the reason; in lower case, as Spark hands options over."""
    text, reason = _REFUSED[name]
    with pytest.raises(OptionError, match=reason) as caught:
        DynamoDbStreamsDataSource({"tablename": "orders", name.lower(): text})
    assert caught.value.code == "IRRELEVANT_OPTION"
    assert caught.value.option == name
    assert f"{name!r}" in str(caught.value)


def test_every_option_is_used_or_refused() -> None:
    """No option is ignored: options of reads act, all others have a reason."""
    taken = {"tableName", "streamArn", "region", "endpointUrl", "initialPosition", "failOnDataLoss", "retryPatience"}
    refused = set()
    for spec in OPTIONS:
        name = f"{spec.name}.orders" if spec.prefix else spec.name
        try:
            dynamodb_options({"tableName": "orders", name: "7"}, environ={})
        except OptionError as error:
            if error.code == "IRRELEVANT_OPTION":
                refused.add(spec.name)
    assert not taken & refused
    assert {one.name for one in OPTIONS if one.group in ("records", "sending")} <= refused


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({}, "MISSING_OPTION", "'tableName' is required"),
        ({"tableName": "a"}, "INVALID_OPTION", "3 to 255"),
        ({"streamArn": "arn:aws:kinesis:eu-west-1:123456789012:stream/s"}, "INVALID_OPTION", "table/<table>/stream"),
        ({"streamArn": f"{ARN},{ARN}"}, "INVALID_OPTION", "one stream"),
        ({"streamArn": ARN, "tableName": "other"}, "CONTRADICTORY_OPTIONS", "one of table orders"),
        ({"streamArn": ARN, "region": "us-east-1"}, "CONTRADICTORY_OPTIONS", "in eu-west-1"),
        ({"tableName": "orders", "getRecordsMaxRecords": "1001"}, "INVALID_OPTION", "at most 1000"),
        ({"tableName": "orders", "initialPosition": "AT_TIMESTAMP 2026-01-31T00:00:00Z"}, "INVALID_OPTION", "filter"),
        ({"tableName": "orders", "initialPosition": '{"shardId-000000000000": "1"}'}, "INVALID_OPTION", "LATEST or"),
        ({"tableName": "orders", "tabelName": "x"}, "UNKNOWN_OPTION", "tableName"),
    ],
)
def test_wrong_value_is_named(options: dict[str, str], code: str, words: str) -> None:
    """Before Spark runs anything."""
    with pytest.raises(OptionError, match=f"{code}.*{words}"):
        dynamodb_options(options, environ={})


def test_options_of_flinks_source_mean_the_same_here() -> None:
    """Its retries, delays and intervals, with Flink's units; what has no meaning here is accepted."""
    given = {
        "flink.stream.initpos": "TRIM_HORIZON",
        "flink.shard.discovery.intervalmillis": "30 s",
        "flink.dynamodbstreams.numretries": "7",
        "flink.dynamodbstreams.backoff.mindelayduration": "200 ms",
        "flink.dynamodbstreams.backoff.maxdelay": "2 s",
        "flink.dynamodbstreams.getrecords.nonempty.mindelay": "400 ms",
        "flink.dynamodbstreams.getrecords.empty.mindelay": "1 s",
        "flink.describestream.inconsistencyresolution.retries": "5",
        "aws.dynamodbstreams.client.user-agent-prefix": "x",
    }
    parsed = dynamodb_options({"tableName": "orders", **given}, environ={})
    assert parsed.get_records_max_retries == 7
    assert (parsed.get_records_backoff_base, parsed.get_records_backoff_max) == (200.0, 2000.0)
    assert (parsed.get_records_interval, parsed.shard_discovery_interval) == (400.0, 30.0)
    assert parsed.initial_position is not None
    assert parsed.initial_position.type.name == "TRIM_HORIZON"


def test_an_arn_says_table_and_region() -> None:
    """And so does an endpoint of AWS, or of the environment."""
    parsed = dynamodb_options({"streamArn": ARN}, environ={})
    assert (parsed.table_name, parsed.region, parsed.stream_arn) == ("orders", "eu-west-1", (ARN,))
    given = {"tableName": "orders", "endpointUrl": "https://streams.dynamodb.eu-west-1.amazonaws.com"}
    assert dynamodb_options(given, environ={}).region == "eu-west-1"
    http = {"AWS_ENDPOINT_URL_DYNAMODB_STREAMS": "http://streams.internal", "AWS_ACCESS_KEY_ID": "AKIA" + "X" * 16}
    with pytest.raises(OptionError, match=r"streams\.internal"):
        dynamodb_options({"tableName": "orders"}, environ=http)
    assert dynamodb_options({"tableName": "orders"}, environ={**http, "AWS_ENDPOINT_URL_DYNAMODB_STREAMS": ""})


def test_options_belong_to_their_format(spark: SparkSession) -> None:
    """Options of streams belong to streams, a stream of a table is not written, and Kinesis has no tables."""
    with pytest.raises(OptionError, match=r"IRRELEVANT_OPTION.*format 'kinesis'"):
        KinesisDataSource({"tableName": "orders"})
    source = DynamoDbStreamsDataSource({"tableName": "orders", "maxRecordsPerBatch": "5"})
    with pytest.raises(OptionError, match=r"MISPLACED_OPTION.*maxRecordsPerBatch"):
        source.reader(CHANGE_SCHEMA)
    frame = spark.range(1).withColumn("data", F.lit("x"))
    with pytest.raises((AnalysisException, PySparkException), match="can only be read"):
        frame.write.format("dynamodb-streams").mode("append").option("tableName", "orders").save()
