"""Edits of a job: a result that is used again has the rows that a run on an empty store would give."""

import functools
import importlib
import pickle
import random
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import OperatorAttributes, StageState
from penstock.spark_plugin import Pipeline

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
SETTING = "spark.sql.session.timeZone"
_PICKLING: Any = cloudpickle
Jobs = dict[str, str]

# Each operator gives one row, `value`: 10 and a number, which comes from somewhere else in each of them.
# What is in its code, or in what the code names, is in the fingerprint.
SEEN: Jobs = {
    "code": """
        def op(rows): return rows.selectExpr("v + {n} AS value")
        """,
    "closure": """
        def make(n): return lambda rows: rows.selectExpr(f"v + {{n}} AS value")
        op = make({n})
        """,
    "global": """
        N = {n}
        def op(rows): return rows.select(add("v").alias("value"))
        @F.udf("long")
        def add(value): return value + N
        """,
    "helper": """
        def inner(value): return value + {n}
        def outer(value): return inner(value)
        def op(rows): return rows.select(F.udf(lambda value: outer(value), "long")("v").alias("value"))
        """,
    "object": """
        class Rate:
            def __init__(self, n): self.n = n
            def add(self, value): return value + self.n
        RATE = Rate({n})
        def op(rows): return rows.select(F.udf(RATE.add, "long")("v").alias("value"))
        """,
    "module": """
        import edited_rates
        def op(rows): return rows.selectExpr(f"v + {{edited_rates.of()}} AS value")
        """,
    "attribute by name": """
        import edited_rates
        def op(rows): return rows.selectExpr(f"v + {{getattr(edited_rates, 'N')}} AS value")
        """,
    "import in a function": """
        def op(rows):
            from edited_rates import of
            return rows.selectExpr(f"v + {{of()}} AS value")
        """,
    "import by name": """
        def op(rows): return rows.select(F.udf(add, "long")("v").alias("value"))
        def add(value): return value + importlib.import_module("edited_rates").of()
        """,
    "environment at import": """
        N = int(os.environ["EDITED_N"])
        def op(rows): return rows.select(F.udf(lambda value: value + N, "long")("v").alias("value"))
        """,
    "pandas": """
        def op(rows): return rows.mapInPandas(add, "value long")
        def add(frames):
            for frame in frames:
                yield (frame[["v"]] + {n}).rename(columns={{"v": "value"}})
        """,
    "setting": """
        def op(rows): return rows.selectExpr("v + hour(timestamp_seconds(0)) AS value")
        """,
}
# These read the number as they run, on the driver or in a Python worker.
READ: Jobs = {
    "environment": """
        def op(rows): return rows.select(F.udf(add, "long")("v").alias("value"))
        def add(value): return value + int(os.environ["EDITED_N"])
        """,
    "environment on the driver": """
        def op(rows): return rows.selectExpr(f"v + {{os.environ['EDITED_N']}} AS value")
        """,
    "environment in a source": """
        def op(rows): return rows.select(F.col("n").alias("value"))
        """,
    "file": """
        def op(rows): return rows.select(F.udf(add, "long")("v").alias("value"))
        def add(value): return value + int(pathlib.Path(FOLDER, "n.txt").read_text())
        """,
    "file on the driver": """
        def op(rows): return rows.selectExpr(f"v + {{pathlib.Path(FOLDER, 'n.txt').read_text()}} AS value")
        """,
    "file of Spark": """
        def op(rows): return rows.crossJoin(rows.sparkSession.read.csv(f"{{FOLDER}}/n.txt", schema="n int")).selectExpr(
            "v + n AS value")
        """,
    "lazy model": """
        MODEL = None
        def op(rows): return rows.select(F.udf(add, "long")("v").alias("value"))
        def add(value):
            global MODEL
            if MODEL is None:
                with open(f"{{FOLDER}}/model.pkl", "rb") as file:
                    MODEL = pickle.load(file)
            return value + MODEL["n"]
        """,
    "arguments": """
        def op(rows): return rows.selectExpr(f"v + {{sys.argv[-1]}} AS value")
        """,
    "globals": """
        N = {n}
        def op(rows): return rows.selectExpr(f"v + {{globals()['N']}} AS value")
        """,
    "setting by name": """
        def op(rows): return rows.selectExpr(f"v + {{rows.sparkSession.conf.get('edited.n')}} AS value")
        """,
    "view": """
        def op(rows): return rows.crossJoin(rows.sparkSession.table("edited_view")).selectExpr("v + n AS value")
        """,
}
# Ordinary operators over rows `k, g, v`. Nothing in them changes between two runs.
ORDINARY: Jobs = {
    "aggregate": """
        def op(rows): return rows.groupBy("g").agg(F.sum("v").alias("total"), F.count("*").alias("n"))
        """,
    "join": """
        NAMES = [(0, "even"), (1, "odd")]
        def op(rows):
            names = rows.sparkSession.createDataFrame(NAMES, "g long, name string")
            return rows.join(F.broadcast(names), "g", "left").select("k", "name")
        """,
    "window": """
        from pyspark.sql import Window
        BY_GROUP = Window.partitionBy("g").orderBy("k")
        def op(rows): return rows.withColumn("before", F.lag("v").over(BY_GROUP))
        """,
    "SQL": """
        def op(rows):
            rows.createOrReplaceTempView("ordinary_rows")
            return rows.sparkSession.sql("SELECT g, max(v) AS most FROM ordinary_rows GROUP BY g")
        """,
    "pivot": """
        def op(rows): return rows.groupBy("g").pivot("k", [0, 1, 2]).agg(F.first("v"))
        """,
    "udf": """
        @F.udf("string")
        def label(value): return f"{{value:04d}}"
        def op(rows): return rows.select(label("v").alias("label"))
        """,
    "pandas udf": """
        import pandas as pd
        @F.pandas_udf("double")
        def scaled(values: pd.Series) -> pd.Series: return values / 3.0
        def op(rows): return rows.select(scaled("v").alias("scaled"))
        """,
    "map in pandas": """
        import numpy as np
        def op(rows): return rows.mapInPandas(scaled, "k long, root double")
        def scaled(frames):
            for frame in frames:
                yield frame.assign(root=np.sqrt(frame["v"]))[["k", "root"]]
        """,
    "apply in pandas": """
        def op(rows): return rows.groupBy("g").applyInPandas(last, "k long, g long, v long")
        def last(frame): return frame.sort_values("k").tail(1)
        """,
    "map in arrow": """
        def op(rows): return rows.mapInArrow(lambda batches: batches, rows.schema)
        """,
    "helpers of a module": """
        import edited_rates as rates
        def op(rows): return rows.select(F.udf(lambda value: value * rates.of(), "long")("v").alias("value"))
        """,
    "data class": """
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class Limits:
            low: int = 0
            high: int = 30
            def clip(self, value): return min(max(value, self.low), self.high)
        LIMITS = Limits(low=10)
        def op(rows): return rows.select(F.udf(lambda value: LIMITS.clip(value), "long")("v").alias("value"))
        """,
    "constants": """
        RATES = {{"a": 1, "b": [2, 3], "c": {{"d", "e"}}}}
        def op(rows): return rows.select((F.col("v") * RATES["a"] + sum(RATES["b"]) + len(RATES["c"])).alias("value"))
        """,
    "logging": """
        import logging, time
        log = logging.getLogger("ordinary")
        def noted(value):
            started = time.perf_counter()
            log.info("value %s took %s", value, time.perf_counter() - started)
            return value
        def op(rows):
            log.info("columns %s", rows.columns)
            return rows.select(F.udf(noted, "long")("v").alias("value"))
        """,
    "regular expression": """
        import re
        DIGITS = re.compile(r"[0-9]+")
        def digits(text): return DIGITS.sub("#", text) if re.match("k", text) else ""
        def op(rows): return rows.select(F.udf(digits, "string")(F.concat(F.lit("k"), "k")).alias("text"))
        """,
    "partial": """
        def scale(factor, value): return factor * value
        def op(rows): return rows.select(F.udf(functools.partial(scale, 2), "long")("v").alias("value"))
        """,
    "cache": """
        @functools.lru_cache(maxsize=None)
        def factorial(n): return n * factorial(n - 1) if n else 1
        def op(rows): return rows.select(F.udf(lambda k: factorial(k), "long")("k").alias("value"))
        """,
    "lazy table": """
        TABLE = None
        def op(rows): return rows.select(F.udf(squared, "long")("k").alias("value"))
        def squared(k):
            global TABLE
            if TABLE is None:
                TABLE = {{n: n * n for n in range(10)}}
            return TABLE[k]
        """,
    "dates and paths": """
        from datetime import datetime, timedelta
        from pathlib import PurePosixPath
        BEGIN = datetime(2024, 1, 1)
        def op(rows): return rows.select(F.udf(path, "string")("k").alias("path"))
        def path(k): return str(PurePosixPath("/data") / (BEGIN + timedelta(days=k)).strftime("%Y/%m/%d"))
        """,
    "seeded sample": """
        def op(rows): return rows.select(F.udf(drawn, "double")("k").alias("drawn"))
        def drawn(k):
            import random
            return random.Random(k).random()
        """,
    "enumeration and errors": """
        import enum, json
        class Kind(enum.Enum):
            EVEN = 0
            ODD = 1
        def kind(g):
            try:
                return json.dumps({{"kind": Kind(g).name}})
            except (ValueError, KeyError) as error:
                return str(error)
        def op(rows): return rows.select(F.udf(kind, "string")("g").alias("kind"))
        """,
    "object with methods": """
        class Table:
            def __init__(self, rates): self.rates = rates
            @classmethod
            def load(cls, file):
                with open(file) as text:
                    return cls(json.load(text))
            def of(self, g): return self.rates.get(g, 0.0)
        TABLE = Table({{0: 1.5}})
        def op(rows): return rows.select(F.udf(lambda g: TABLE.of(g), "double")("g").alias("rate"))
        """,
}
HEAD = """import functools, importlib, os, pathlib, pickle, sys
from pyspark.sql import functions as F
FOLDER = {folder!r}
"""


class Edited:
    """A job whose operators depend on numbers, and a store that its runs share."""

    def __init__(self, spark: SparkSession, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._spark = spark
        self._folder = folder
        self._patch = patch
        self._modules: set[str] = set()

    def run(self, numbers: dict[str, int], world: int, zone: int) -> tuple[dict[str, int], dict[str, StageState]]:
        """Run the job as a new process would.

        Args:
            numbers: The number of each operator, where it is in code.
            world: The number that is read from outside.
            zone: The hours of the time zone of the session.

        Returns: the value and the state of each operator.
        """
        self._set_world(world)
        self._spark.conf.set(SETTING, f"+{zone:02}:00")
        states = self._run(1, ["10L AS v"], SEEN | READ, numbers, ["name", "value"])
        rows = self._spark.read.parquet(f"{self._folder}/out").collect()
        return {row["name"]: row["value"] for row in rows}, states

    def run_ordinary(self) -> dict[str, StageState]:
        """Run the ordinary operators as a new process would, and give their states."""
        self._set_world(1)
        columns = ["id AS k", "id % 2 AS g", "id * 10 AS v"]
        return self._run(6, columns, ORDINARY, {}, ["name", "to_json(struct(*))"])

    def _run(
        self, count: int, columns: list[str], jobs: Jobs, numbers: dict[str, int], shown: list[str]
    ) -> dict[str, StageState]:
        self.forget()
        n = self._spark.sparkContext.environment["EDITED_N"]
        self._import("edited_rates", f"N = {n}\ndef of(): return N\n")
        pipeline, out = Pipeline("edited", store=self._folder / "store"), f"{self._folder}/out"
        pipeline.source(bounded=True, name="rows")(lambda spark: spark.range(count).selectExpr(*columns))
        pipeline.source(bounded=True, name="read rows")(self._module("source", SOURCE, 0).op)
        for name, text in jobs.items():
            source = "read rows" if name == "environment in a source" else "rows"
            op = self._module(name, text, numbers.get(name, 0)).op
            pipeline.op(name=name, inputs=[source], attributes=FULL_DAM)(op)

        @pipeline.sink(inputs=[*jobs])
        def report(*frames: DataFrame) -> Any:
            named = (frame.withColumn("name", F.lit(name)) for name, frame in zip(jobs, frames, strict=True))
            union = functools.reduce(DataFrame.union, (frame.selectExpr(*shown) for frame in named))
            return union.write.format("parquet").mode("overwrite").option("path", out)

        states = pipeline.run(self._spark).states
        return {name: states[name] for name in (*jobs, "report")}

    def _set_world(self, n: int) -> None:
        (self._folder / "n.txt").write_text(str(n))
        (self._folder / "model.pkl").write_bytes(pickle.dumps({"n": n}))
        self._patch.setenv("EDITED_N", str(n))
        self._patch.setattr(sys, "argv", ["job.py", str(n)])
        # Python workers take these variables. If one of them has changed, Spark starts new processes.
        environment: dict[str, str] = self._spark.sparkContext.environment
        self._patch.setitem(environment, "EDITED_N", str(n))
        self._patch.setitem(environment, "PYTHONPATH", str(self._folder))
        self._spark.conf.set("edited.n", str(n))
        self._spark.sql(f"SELECT {n} AS n").createOrReplaceTempView("edited_view")

    def _module(self, name: str, text: str, n: int) -> Any:
        text = HEAD.format(folder=str(self._folder)) + dedented(text).format(n=n)
        module = self._import(f"edited_{name.replace(' ', '_')}", text)
        _PICKLING.register_pickle_by_value(module)
        return module

    def _import(self, name: str, text: str) -> types.ModuleType:
        (self._folder / f"{name}.py").write_text(text)
        self._modules.add(name)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    def forget(self) -> None:
        """Forget the modules, as a process that ends."""
        for name in self._modules:
            module = sys.modules.pop(name, None)
            if module is not None and name in _PICKLING.list_registry_pickle_by_value():
                _PICKLING.unregister_pickle_by_value(module)


SOURCE = """
    def op(spark): return spark.range(1).select((add("id") + 10).alias("n"))
    @F.udf("long")
    def add(value): return value + int(os.environ["EDITED_N"])
    """


def dedented(text: str) -> str:
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] for line in lines)


@pytest.fixture
def edited(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edited]:
    """An edited job; the session is left as it was."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # Two edits within a second would have one time in a cached file.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    zone = spark.conf.get(SETTING)
    one = Edited(spark, tmp_path, monkeypatch)
    yield one
    one.forget()
    spark.catalog.dropTempView("edited_view")
    spark.conf.set(SETTING, zone or "UTC")
    spark.conf.unset("edited.n")


BY_WORLD = {"module", "attribute by name", "import in a function", "import by name"} | {
    "environment at import",
    *READ,
} - {"globals"}


def test_rows_are_those_of_an_empty_store_after_any_edits(edited: Edited) -> None:
    """And what was not edited is used again."""
    chance = random.Random(7)
    numbers, world, zone = dict.fromkeys([*SEEN, *READ], 1), 1, 1

    def expected() -> dict[str, int]:
        found = {name: 10 + (world if name in BY_WORLD else n) for name, n in numbers.items()}
        return found | {"setting": 10 + zone}

    # The first run begins with an empty store.
    assert edited.run(numbers, world, zone)[0] == expected()
    for kind in chance.sample(["code", "world", "setting"], 3):
        before = dict(numbers)
        for name in chance.sample(sorted(numbers), 8):
            numbers[name] = chance.randint(1, 3)
        world = world % 3 + 1 if kind == "world" else world
        zone = zone % 3 + 1 if kind == "setting" else zone
        rows, states = edited.run(numbers, world, zone)
        assert {name: value for name, value in rows.items() if value != expected()[name]} == {}
        if kind == "code":  # the world has a setting, and a setting counts for all
            kept = {name for name in SEEN if numbers[name] == before[name]}
            assert {name: states[name] for name in kept} == dict.fromkeys(kept, StageState.REUSED)


def test_ordinary_operators_are_used_again(edited: Edited) -> None:
    """Nothing in them has changed; so is the sink that writes all of their rows."""
    assert set(edited.run_ordinary().values()) == {StageState.FINISHED}
    assert {name: state for name, state in edited.run_ordinary().items() if state is not StageState.REUSED} == {}
