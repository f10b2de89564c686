"""Fingerprints of what bounded sources read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from penstock.spark_plugin._code_fingerprint import digest, function_fingerprint, unique
from penstock.spark_plugin._plan_tree import items

_SESSION_SETTINGS = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.caseSensitive",
)
# Leaves of a plan whose text says all about their rows; files are looked up one by one.
_KNOWN_LEAVES = frozenset({"LocalRelation", "Range", "OneRowRelation", "LogicalRelation"})


def session_fingerprint(spark: SparkSession) -> str:
    """Of Spark's version and the settings of a session that change results."""
    return digest(spark.version, *(f"{name}={spark.conf.get(name, None)}" for name in _SESSION_SETTINGS))


def source_fingerprint(frame: DataFrame) -> str:
    """Of what a bounded source reads: its plan, and the path, size and modification time of each of its files.

    Unique for a source whose rows cannot be seen from here: a database, a topic, an RDD.
    """
    try:
        plan = frame._jdf.queryExecution().analyzed()
        leaves = plan.collectLeaves()
        names = [leaves.apply(index).nodeName() for index in range(leaves.size())]
    except AttributeError:  # a Spark Connect frame
        return unique()
    if not all(name.split()[0] in _KNOWN_LEAVES for name in names):
        return unique()
    files = frame.inputFiles()
    relations = sum(name.startswith("LogicalRelation") for name in names)
    if relations and not files:
        return unique()
    stamps = [_file_stamp(url) for url in sorted(files)]
    if any(stamp is None for stamp in stamps):
        return unique()
    return digest(plan_fingerprint(frame), *(stamp or "" for stamp in stamps))


def plan_fingerprint(frame: DataFrame) -> str:
    """Of what a DataFrame does to its sources: its plan, and the Python functions in it."""
    return digest(frame._jdf.schema().json(), _plan_text(frame), *_functions(frame._jdf.queryExecution().analyzed()))


def _functions(plan: Any) -> Iterator[str]:
    """Fingerprints of the Python functions in a plan, whose text names them at best: two lambdas look the same."""
    for expression in items(plan.expressions()):
        yield from _functions_of(expression)
    for child in items(plan.children()):
        yield from _functions(child)


def _functions_of(expression: Any) -> Iterator[str]:
    if expression.getClass().getSimpleName().startswith("Python"):
        try:
            command = cloudpickle.loads(bytes(expression.func().command().unsafeArray()))
            yield function_fingerprint(command[0])
        except Exception:
            yield unique()
    for child in items(expression.children()):
        yield from _functions_of(child)


def _plan_text(frame: DataFrame) -> str:
    conf = frame.sparkSession.conf
    before = conf.get("spark.sql.debug.maxToStringFields")
    # The default leaves columns out after the 25th.
    conf.set("spark.sql.debug.maxToStringFields", "100000")
    try:
        return str(frame._jdf.queryExecution().analyzed().canonicalized().toString())
    finally:
        conf.set("spark.sql.debug.maxToStringFields", before or "25")


def _file_stamp(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.scheme not in ("", "file"):
        return None
    path = Path(unquote(parts.path))
    try:
        status = path.stat()
    except OSError:
        return None
    return f"{path}|{status.st_size}|{status.st_mtime_ns}"
