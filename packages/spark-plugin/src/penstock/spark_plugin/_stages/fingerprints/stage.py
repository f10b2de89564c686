"""What goes into the fingerprint of a stage's result. Two results with one fingerprint are the same rows.

- `code_fingerprint`: Spark's version, the settings of the session that may change rows, and each function of the stage
  with its inputs. `code.py` follows a function to whatever it names.
- The plans of the operators' DataFrames: whatever the driver has put into them. See `Plans.look`.
- The fingerprints of the results that the stage reads.
- `look_at_source`: what each bounded source holds: plan, files, ends of a Kinesis read; or what the user declares.

Whatever cannot be compared gets a fingerprint that nothing else has (`unique`): the stage is computed in each run.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from penstock.spark_plugin._for_stages import asked_of_kinesis, bounded_read
from penstock.spark_plugin._stages.declare.declared import Declared
from penstock.spark_plugin._stages.fingerprints.code import Looked, digest, unique
from penstock.spark_plugin._stages.plans.plan import Look, plans_of

# Settings, with those below them, that say where and how fast rows are made, or how they are shown: not which rows.
_OF_THE_APPLICATION = """
app archives barrier blockManager broadcast cleaner cores deploy driver dynamicAllocation eventLog
excludeOnFailure executor executorEnv extraListeners history io jars kryo kryoserializer kubernetes launcher
local locality logConf master memory metrics network plugins port pyspark python r redaction repl reducer
resources rpc scheduler security serializer shuffle speculation stage storage submit task ui unsafe worker yarn
"""
_OF_SPEED = """
adaptive artifact autoBroadcastJoinThreshold broadcastTimeout broadcastExchange cache catalogImplementation cbo
codegen columnVector connect debug event exchange inMemoryColumnarStorage join maxPlanStringLength
metadataCacheTTLSeconds pyspark queryExecutionListeners redaction repl shuffle statistics streaming
subexpressionElimination thriftServer ui warehouse execution.pyspark execution.pythonUDF
execution.sortBeforeRepartition execution.topKSortFallbackThreshold execution.useObjectHashAggregateExec
execution.usePartitionEvaluator files.maxPartitionBytes files.maxPartitionNum files.minPartitionNum
files.openCostInBytes sources.parallelPartitionDiscovery
"""
_SPEED = {f"spark.{name}" for name in _OF_THE_APPLICATION.split()} | {f"spark.sql.{name}" for name in _OF_SPEED.split()}
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


def code_fingerprint(spark: SparkSession, functions: Iterable[tuple[Declared, Looked]]) -> str:
    """The fingerprint of a stage's functions, in the order of its vertices, and of the session that runs them."""
    parts = [session_fingerprint(spark)]
    for one, looked in functions:
        inputs = (f"{index}:{source}" for index, source in enumerate(one.inputs))
        parts += [one.name, one.kind.value, *inputs, looked.fingerprint]
        if one.wants_sorted:
            parts += [f"sorted {source} {','.join(keys)}" for source in one.inputs if (keys := one.keys_of(source))]
    return digest(*parts)


def session_fingerprint(spark: SparkSession) -> str:
    """The fingerprint of Spark's version and of the session settings that may change results."""
    # Each question is a round trip of Spark Connect.
    given = {name: value for name, value in spark.conf.getAll.items() if not _is_of_speed(name)}
    given |= {name: spark.conf.get(name) or "" for name in _SETTINGS_OF_THE_MACHINE}
    return digest(spark.version, *(f"{name}={value}" for name, value in sorted(given.items())))


def _is_of_speed(setting: str) -> bool:
    parts = setting.split(".")
    return any(".".join(parts[:count]) in _SPEED for count in range(2, len(parts) + 1))


def query_of(frame: DataFrame, look: Look) -> str:
    """The fingerprint of what a bounded source with that plan asks for, whatever it is given by now."""
    reads = (digest(*asked_of_kinesis(options)) for options in plans_of(frame).streams(frame))
    return digest(look.fingerprint, *reads)


def look_at_source(frame: DataFrame, look: Look | None = None) -> Look:
    """What a bounded source reads: its plan, and path, size and modification time of each file.

    A bounded read of Kinesis counts by its stream and both of its ends.

    The fingerprint is unique for a source whose rows cannot be seen from here: a database, a topic, an RDD, a file of
    another machine. `look`: the plan's, if it is known.
    """
    files = plans_of(frame).files(frame)
    stamps = [_file_stamp(url) for url in sorted(files or ())]
    if files is not None and None not in stamps:
        reads = [bounded_read(options) for options in plans_of(frame).streams(frame)]
        stamps += [digest(*facts) if facts is not None else None for facts in reads]
    if files is None or None in stamps:
        return Look(unique())
    look = look or plans_of(frame).look(frame)
    return Look(digest(look.fingerprint, *(stamp or "" for stamp in stamps)), look.world)


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
