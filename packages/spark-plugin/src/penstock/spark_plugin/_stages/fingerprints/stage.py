"""What goes into the fingerprint of a stage's result. Two results with one fingerprint are the same rows.

- `code_fingerprint`: Spark's version, the settings of the session that change rows, and each function of the stage with
  its inputs. `code.py` follows a function to whatever it names.
- The fingerprints of the results that the stage reads.
- `source_fingerprint`: what each bounded source holds: plan, files, ends of a Kinesis read; or what the user declares.

Whatever cannot be compared gets a fingerprint that nothing else has (`unique`): the stage is computed in each run.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from penstock.spark_plugin._for_stages import bounded_read
from penstock.spark_plugin._stages.declare.declared import Declared
from penstock.spark_plugin._stages.fingerprints.code import digest, function_fingerprint, unique
from penstock.spark_plugin._stages.plans.plan import plans_of

# Those that say which rows a plan gives; not those that say how fast.
_SETTINGS = frozenset(
    {
        "spark.sql.avro.datetimeRebaseModeInRead",
        "spark.sql.avro.datetimeRebaseModeInWrite",
        "spark.sql.caseSensitive",
        "spark.sql.csv.parser.columnPruning.enabled",
        "spark.sql.decimalOperations.allowPrecisionLoss",
        "spark.sql.files.ignoreCorruptFiles",
        "spark.sql.files.ignoreMissingFiles",
        "spark.sql.jsonGenerator.ignoreNullFields",
        "spark.sql.mapKeyDedupPolicy",
        "spark.sql.parquet.binaryAsString",
        "spark.sql.parquet.datetimeRebaseModeInRead",
        "spark.sql.parquet.datetimeRebaseModeInWrite",
        "spark.sql.parquet.int96AsTimestamp",
        "spark.sql.parquet.int96RebaseModeInRead",
        "spark.sql.parquet.int96RebaseModeInWrite",
        "spark.sql.parquet.int96TimestampConversion",
        "spark.sql.parser.escapedStringLiterals",
        "spark.sql.storeAssignmentPolicy",
        "spark.sql.timestampType",
    }
)
_KINDS_OF_SETTINGS = ("spark.sql.ansi.", "spark.sql.legacy.")
# Their defaults are the machine's: its time zone, and a variable of the environment.
_SETTINGS_OF_THE_MACHINE = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")


def stage_fingerprint(code: str, inputs: Mapping[str, str], sources: Iterable[str]) -> str:
    """The fingerprint of a stage's result.

    Args:
        code: The stage's `code_fingerprint`.
        inputs: Fingerprints of the results that it reads, by name of their stage.
        sources: Fingerprints of what its sources hold, in the order of the stage's vertices.
    """
    return digest(code, *(f"{name}={fingerprint}" for name, fingerprint in sorted(inputs.items())), *sources)


def code_fingerprint(spark: SparkSession, functions: Iterable[Declared]) -> str:
    """The fingerprint of a stage's functions, in the order of its vertices, and of the session that runs them."""
    parts = [session_fingerprint(spark)]
    for one in functions:
        inputs = (f"{index}:{source}" for index, source in enumerate(one.inputs))
        parts += [one.name, one.kind.value, *inputs, one.code or function_fingerprint(one.function)]
        if one.wants_sorted:
            parts += [f"sorted {source} {','.join(keys)}" for source in one.inputs if (keys := one.keys_of(source))]
    return digest(*parts)


def session_fingerprint(spark: SparkSession) -> str:
    """The fingerprint of Spark's version and of the session settings that change results."""
    # Each question is a round trip of Spark Connect.
    given = {
        name: value
        for name, value in spark.conf.getAll.items()
        if name in _SETTINGS or name.startswith(_KINDS_OF_SETTINGS)
    }
    given |= {name: spark.conf.get(name) or "" for name in _SETTINGS_OF_THE_MACHINE}
    return digest(spark.version, *(f"{name}={value}" for name, value in sorted(given.items())))


def source_fingerprint(frame: DataFrame) -> str:
    """The fingerprint of what a bounded source reads: its plan, and path, size and modification time of each file.

    A bounded read of Kinesis counts by its stream and both of its ends.

    Unique for a source whose rows cannot be seen from here: a database, a topic, an RDD, a file of another machine.
    """
    files = plans_of(frame).files(frame)
    stamps = [_file_stamp(url) for url in sorted(files or ())]
    if files is not None and None not in stamps:
        reads = [bounded_read(options) for options in plans_of(frame).streams(frame)]
        stamps += [digest(*facts) if facts is not None else None for facts in reads]
    if files is None or None in stamps:
        return unique()
    return digest(plan_fingerprint(frame), *(stamp or "" for stamp in stamps))


def plan_fingerprint(frame: DataFrame) -> str:
    """The fingerprint of what a DataFrame does to its sources: its plan, and the Python functions in it."""
    return plans_of(frame).fingerprint(frame)


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
