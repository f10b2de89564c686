"""What a plan's text does not say of its rows, and a fingerprint has to: a stage would be used again for other rows."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it
from pyspark.sql.pandas.functions import pandas_udf

from penstock.spark_plugin._for_stages import bounded_read
from penstock.spark_plugin._stages.fingerprints.code import look_at
from penstock.spark_plugin._stages.fingerprints.stage import look_at_source, session_fingerprint
from penstock.spark_plugin._stages.plans.plan import plans_of


def function_fingerprint(function: Callable[..., Any]) -> str:
    return look_at(function).fingerprint


def plan_fingerprint(frame: DataFrame) -> str:
    return plans_of(frame).look(frame).fingerprint


def source_fingerprint(frame: DataFrame) -> str:
    return look_at_source(frame).fingerprint


def rows(spark: SparkSession, file: Path, **options: str) -> DataFrame:
    return spark.read.schema("k int, v int").options(**options).csv(str(file))


def test_options_of_files_count(spark: SparkSession, tmp_path: Path) -> None:
    """The same file is read in another way."""
    file = tmp_path / "a.csv"
    file.write_text("1;2\n")
    assert source_fingerprint(rows(spark, file, sep=";")) == source_fingerprint(rows(spark, file, sep=";"))
    assert source_fingerprint(rows(spark, file, sep=";")) != source_fingerprint(rows(spark, file, sep=","))


def total(frame: DataFrame, column: str) -> DataFrame:
    """What has the same columns, whatever the frame has."""
    return frame.agg(F.max(F.col(column).cast("string")).alias("most"))


@pytest.mark.parametrize(
    ("one", "other"), [("p int", "q int"), ("p string", "p decimal(10, 4)"), ("p int", "p int, q int")]
)
def test_which_columns_are_read_of_a_file_counts(spark: SparkSession, tmp_path: Path, one: str, other: str) -> None:
    """Their names and types; nothing above the relation says them."""
    file = tmp_path / "a.json"
    file.write_text('{"p": 1, "q": 2}\n')

    def of(schema: str) -> str:
        return plan_fingerprint(total(spark.read.schema(schema).json(str(file)), schema.split()[0]))

    assert of(one) == of(one)
    assert of(one) != of(other)


def test_which_files_are_read_by_which_relation_counts(spark: SparkSession, tmp_path: Path) -> None:
    """In a difference of two lists of files, of two tables by their paths, or of two folders."""
    for name in ("new", "newer", "old", "older"):
        spark.range(1).write.parquet(str(tmp_path / name))

    def lists(one: list[str], other: list[str]) -> DataFrame:
        sides = (spark.read.parquet(*(str(tmp_path / name) for name in names)) for names in (one, other))
        return next(sides).exceptAll(next(sides))

    def tables(one: list[str], other: list[str]) -> DataFrame:
        sides = [f"SELECT * FROM parquet.`{tmp_path / names[0]}`" for names in (one, other)]
        return spark.sql(" EXCEPT ALL ".join(sides))

    for read in (lists, tables):
        before = plan_fingerprint(read(["new", "newer"], ["old", "older"]))
        assert plan_fingerprint(read(["new", "newer"], ["old", "older"])) == before
        assert plan_fingerprint(read(["old", "older"], ["new", "newer"])) != before
    assert plan_fingerprint(lists(["new"], ["old"])) != plan_fingerprint(lists(["old"], ["new"]))


@pytest.mark.parametrize("named", ["", "/*.csv"])
def test_a_new_file_in_a_folder_does_not_change_the_plan(spark: SparkSession, tmp_path: Path, named: str) -> None:
    """It is another state of the same source: a run that continues keeps what it began with."""
    (tmp_path / "a.csv").write_text("1,2\n")
    read = rows(spark, Path(f"{tmp_path}{named}"))
    plan, source = plan_fingerprint(read), source_fingerprint(read)
    (tmp_path / "b.csv").write_text("3,4\n")
    read = rows(spark, Path(f"{tmp_path}{named}"))
    assert plan_fingerprint(read) == plan
    assert source_fingerprint(read) != source


@pytest.mark.parametrize("kind", ["udf", "pandas_udf", "mapInPandas", "applyInPandas"])
def test_the_type_that_a_python_function_gives_counts(spark: SparkSession, kind: str) -> None:
    """Spark casts to it, or gives null."""

    make: Any = pandas_udf

    def of(type_: str) -> str:
        frame = spark.range(2)

        def same(values: pd.Series) -> pd.Series:
            return values

        made = {
            "udf": lambda: frame.select(F.udf(lambda value: value / 2, type_)("id").alias("k")),
            "pandas_udf": lambda: frame.select(make(same, type_)("id").alias("k")),
            "mapInPandas": lambda: frame.mapInPandas(lambda frames: frames, f"k {type_}"),
            "applyInPandas": lambda: frame.groupBy("id").applyInPandas(lambda one: one, f"k {type_}"),
        }
        return plan_fingerprint(total(made[kind](), "k"))

    assert of("int") == of("int")
    assert of("int") != of("double")


def test_rows_of_the_drivers_own_count(spark: SparkSession) -> None:
    """Those of a table of Arrow, and of VALUES; they look the same in a plan."""

    def values(first: int) -> DataFrame:
        return spark.sql(f"SELECT * FROM VALUES ({first}, 'a'), (2, 'b') AS t (k, name)")

    def table(first: int) -> DataFrame:
        return spark.createDataFrame(pa.table({"k": [first, 2], "name": ["a", None]}))

    for make in (values, table):
        assert source_fingerprint(make(1)) == source_fingerprint(make(1))
        assert source_fingerprint(make(1)) != source_fingerprint(make(3))


def test_files_of_subqueries_count(spark: SparkSession, tmp_path: Path) -> None:
    """And the functions in them."""
    rates, limits = tmp_path / "rates.csv", tmp_path / "limits.csv"
    rates.write_text("1,2\n")
    limits.write_text("1,1\n")

    def above(step: int) -> DataFrame:
        rows(spark, rates).createOrReplaceTempView("rates_of_a_test")
        add = F.udf(lambda value: value + step, "int")
        rows(spark, limits).select(add("k").alias("k")).createOrReplaceTempView("limits_of_a_test")
        return spark.sql("SELECT * FROM rates_of_a_test WHERE k >= (SELECT max(k) FROM limits_of_a_test)")

    before = source_fingerprint(above(1))
    assert source_fingerprint(above(1)) == before
    assert plan_fingerprint(above(2)) != plan_fingerprint(above(1))
    limits.write_text("10,10\n")
    assert source_fingerprint(above(1)) != before


def test_files_of_what_is_cached_count(spark: SparkSession, tmp_path: Path) -> None:
    """Spark does not list them, as it will not read them; the next driver will."""
    rates, others = tmp_path / "rates.csv", tmp_path / "others.csv"
    rates.write_text("1,2\n")
    others.write_text("1,3\n")

    def fingerprint() -> str:
        cached = rows(spark, rates).cache()
        try:
            return source_fingerprint(cached.join(rows(spark, others).withColumnRenamed("v", "w"), "k"))
        finally:
            cached.unpersist()

    before = fingerprint()
    assert fingerprint() == before
    rates.write_text("10,20\n")
    assert fingerprint() != before


@pytest.mark.parametrize("make", [F.udf, pandas_udf])
def test_a_udf_is_the_same_before_and_after_its_use(spark: SparkSession, make: Any) -> None:
    """Spark keeps what it has made of it in the JVM; stages that name it would run again in the same process."""

    def stage(step: int, kind: str = "long") -> Callable[[DataFrame], DataFrame]:
        def add(value: pd.Series) -> pd.Series:
            return value + step

        add_step = make(add, kind)
        return lambda frame: frame.select(add_step("id").alias("more"))

    unused, used = stage(1), stage(1)
    used(spark.range(2)).schema  # noqa: B018
    assert function_fingerprint(used) == function_fingerprint(used) == function_fingerprint(unused)
    assert function_fingerprint(stage(2)) != function_fingerprint(unused)
    assert function_fingerprint(stage(1, "int")) != function_fingerprint(unused)


@pytest.mark.parametrize("hold", [lambda value: value, lambda value: SimpleNamespace(held=value)])
def test_what_is_broadcast_counts_by_its_value(spark: SparkSession, hold: Any) -> None:
    """Spark pickles its number, which is the same in each driver whatever was broadcast there."""

    def stage(rates: dict[str, int]) -> Callable[[DataFrame], DataFrame]:
        held = hold(spark.sparkContext.broadcast(rates))
        return lambda frame: frame.select(F.udf(lambda key: held, "int")("id"))

    assert function_fingerprint(stage({"FRA": 1})) == function_fingerprint(stage({"FRA": 1}))
    assert function_fingerprint(stage({"FRA": 1})) != function_fingerprint(stage({"FRA": 2}))


def test_a_frame_that_a_function_names_is_unlike_anything(spark: SparkSession) -> None:
    """Nor is an object that holds one: what its source holds is not visible. A session does not count."""

    def stage(named: object) -> Callable[[DataFrame], object]:
        return lambda frame: (frame, named)

    for named in (spark.range(1), SimpleNamespace(frame=spark.range(1)), spark.range(1)["id"]):
        assert function_fingerprint(stage(named)) != function_fingerprint(stage(named))
    session = SimpleNamespace(session=spark)
    assert function_fingerprint(stage(session)) == function_fingerprint(stage(session))


@pytest.fixture
def setting(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Sets a setting of the session, until the end of the test."""
    before = spark.conf.getAll
    changed: list[str] = []

    def set_(name: str, value: str) -> None:
        changed.append(name)
        spark.conf.set(name, value)

    yield set_
    for name in changed:
        if name in before:
            spark.conf.set(name, before[name])
        else:
            spark.conf.unset(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.session.timeZone", "Asia/Tokyo"),
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.ansi.doubleQuotedIdentifiers", "true"),
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.files.ignoreCorruptFiles", "true"),
        ("spark.sql.files.ignoreMissingFiles", "true"),
        ("spark.sql.decimalOperations.allowPrecisionLoss", "false"),
        ("spark.sql.mapKeyDedupPolicy", "LAST_WIN"),
        ("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY"),
        ("spark.sql.parquet.int96RebaseModeInWrite", "LEGACY"),
        ("spark.sql.avro.datetimeRebaseModeInRead", "LEGACY"),
        ("spark.sql.legacy.timeParserPolicy", "LEGACY"),
        ("spark.sql.legacy.sizeOfNull", "true"),
    ],
)
def test_settings_that_change_rows_count(
    spark: SparkSession, setting: Callable[[str, str], None], name: str, value: str
) -> None:
    """Not those that change how fast they come."""
    before = session_fingerprint(spark)
    setting("spark.sql.files.maxPartitionBytes", "64MB")
    assert session_fingerprint(spark) == before
    setting(name, value)
    assert session_fingerprint(spark) != before


def test_the_time_zone_of_the_machine_counts(spark: SparkSession, setting: Callable[[str, str], None]) -> None:
    """Where the session names none, times are shown in it."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    before = session_fingerprint(spark)
    setting("spark.sql.session.timeZone", zone)
    assert session_fingerprint(spark) == before


def test_a_setting_takes_few_questions_to_the_server() -> None:
    """Each is a round trip of Spark Connect."""
    asked: list[str] = []

    class Settings:
        @property
        def getAll(self) -> dict[str, str]:  # as PySpark names it
            asked.append("all")
            return {}

        def get(self, name: str) -> str:
            asked.append(name)
            return ""

    session: Any = SimpleNamespace(version="4.0.0", conf=Settings())
    session_fingerprint(session)
    assert len(asked) <= 3


def test_options_that_choose_rows_of_a_stream_count(make_stream: Callable[[int], Any]) -> None:
    """Which shards are read, and whether aggregates are taken apart."""
    source = make_stream(2)

    def of(**options: str) -> tuple[str, ...] | None:
        return bounded_read(source.options(endingPosition="2024-11-01T00:00:00Z", **options))

    found = [of(), of(shardIds="shardId-000000000000"), of(shardIds="shardId-000000000001")]
    found += [of(deaggregate="false"), of(deaggregate="all")]
    assert None not in found
    assert len(set(found)) == len(found)
    assert of(shardIds="shardId-000000000001") == found[2]
