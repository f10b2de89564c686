"""Pipelines: named functions over DataFrames, planned as stages."""

import contextlib
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, ParamSpec, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.operator_attributes import (
    Boundedness,
    CyclicRegions,
    Explanation,
    Input,
    JobGraph,
    OperatorAttributes,
    ResultPartitionType,
    StagePlan,
    VertexKind,
    caller,
    compile,
    explain,
)
from penstock.spark_plugin._stages.declare.declared import (
    Declared,
    Exchange,
    Keyed,
    find_refreshes,
    named,
    place_of,
    seconds_text,
)
from penstock.spark_plugin._stages.store.opening import StorePlace
from penstock.spark_plugin._stages.store.pins import safe_name
from penstock.spark_plugin.errors import PipelineDefinitionError

if TYPE_CHECKING:
    from penstock.rpc import ClientSecurity
    from penstock.spark_plugin._stages.declare.data_stream import DataStream
    from penstock.spark_plugin._stages.run.pipeline_run import PipelineRun

_log = logging.getLogger(__name__)
_PACKAGE = str(Path(__file__).resolve().parents[2])
_MODES = tuple(mode for mode in ResultPartitionType if mode is not ResultPartitionType.UNDECIDED)
_FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
_P = ParamSpec("_P")
_R = TypeVar("_R")


class Pipeline:
    """A job made of named functions: sources, operators and sinks.

    The parameters of a function name its inputs; a source takes the session. The pipeline calls the functions when it
    runs. Operators get the DataFrames of their inputs; the result of a blocking stage is read back from the store. An
    operator returns a DataFrame. A sink returns a `DataStreamWriter` (live) or a `DataFrameWriter` (bounded), which the
    pipeline starts.
    """

    def __init__(
        self,
        name: str,
        *,
        store: str | Path,
        stages: str | Path | None = None,
        store_options: Mapping[str, str] | None = None,
        cyclic_regions: CyclicRegions | str = CyclicRegions.PER_RESULT,
    ) -> None:
        """Create an empty pipeline.

        Args:
            name: The name of the pipeline, which is also part of the names of its queries.
            store: Folder for committed results and checkpoints, which the driver and all executors can reach; or
                `s3://BUCKET/FOLDER`, where Arrow writes and reads results even if Spark has no access; or a folder on
                `gs://`, `abfs://`, `abfss://` or `hdfs://`, where a stage scheduler has to decide which driver may
                write: see `run`.
            stages: Folder or URL for committed results that several pipelines share, each with its own store: a stage
                with the same name and fingerprint is computed once. Default: in `store`.
            store_options: How a store on S3 is reached, with the option names of the data source: `region`,
                `endpointUrl` (of S3), `awsAccessKeyId`, `awsSecretAccessKey`, `awsSessionToken`, `awsProfile`,
                `roleArn` and related options, `webIdentityTokenFile`, `credentialsProvider`, `proxyUrl`. The default is
                the environment of the driver and of each executor. Two options apply to every store by URL:
                `claimSeconds`, after which another driver may take over the store of a silent driver (default 30), and
                `stageFormat`, which is `arrow` (Python tasks write the results; default), `spark` (Spark writes them)
                or `auto` (Spark writes them if it reaches the store).
            cyclic_regions: What to do with bounded rows that several stages need. By default each result is its own
                stage, which reads them separately; `"hand-over"` computes them once, commits them, and hands them
                over; `"read-twice"` and `"merge"` make one stage of the results that share them.

        Raises:
            PipelineDefinitionError: the name is missing, or `cyclic_regions` or an option is unknown.
            StoreUnusableError: a folder is neither on a mounted file system nor on one that Arrow reaches.
        """
        if not name:
            raise PipelineDefinitionError("a pipeline needs a name")
        self.name = name
        self.site = caller(also_skip=(_PACKAGE,))
        """`file:line` where it was created."""
        self.place = StorePlace.parse(store, stages, store_options, self.site)
        """Where its store is, and how it is reached."""
        try:
            self.cyclic_regions = CyclicRegions(cyclic_regions)
        except ValueError:
            raise PipelineDefinitionError(
                f"pipeline {name!r} ({self.site}) has cyclic_regions={cyclic_regions!r}: give one of "
                f"{', '.join(repr(str(rule)) for rule in CyclicRegions)}"
            ) from None
        """What to do with bounded rows that several stages need."""
        self._declared: dict[str, Declared] = {}
        self._folders: dict[str, Declared] = {}
        self._seams: dict[str, str] = {}

    @property
    def declared(self) -> Mapping[str, Declared]:
        """What was declared, by name, in the order of declaration."""
        return dict(self._declared)

    def source(
        self,
        *misplaced: Never,
        bounded: bool | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        fingerprint: str | None = None,
        pure: bool = False,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Declare a source; the function takes the session and gives a DataFrame.

        Args:
            bounded: Whether the source ends; required. It must be the opposite of the DataFrame's `isStreaming`.
            name: Default: the function's name.
            parallelism: The maximum number of tasks, and the number of slots. Default: as many tasks as Spark makes,
                and one slot.
            fingerprint: Identifies the data where Spark does not show it (a database, an RDD): while the fingerprint
                stays the same, stages that read the data are reused. Files need none.
            pure: See `op`. This is about the code of the source and its UDFs, not about the data.

        Raises:
            PipelineDefinitionError: as with `op` and `sink`, the parentheses are missing, or a name or an
                option is invalid; the error names the place.
        """
        _refuse(misplaced, "source", "bounded=True")

        def declare(function: Callable[_P, _R]) -> Callable[_P, _R]:
            if bounded is None:
                raise PipelineDefinitionError(
                    f"source {function.__name__!r} ({place_of(function)}) does not say whether it ends: write "
                    "`@pipeline.source(bounded=True)`, or False of a stream"
                )
            how: dict[str, Any] = {"bounded": bounded, "parallelism": parallelism, "fingerprint": fingerprint}
            self.declare(name or function.__name__, VertexKind.SOURCE, function, pure=pure, **how)
            return function

        return declare

    def op(
        self,
        *misplaced: Never,
        attributes: OperatorAttributes | None = None,
        inputs: Sequence[str] | None = None,
        name: str | None = None,
        keyed: Keyed = False,
        chained: bool | None = None,
        exchange: Exchange | None = None,
        parallelism: int | None = None,
        refresh: str | timedelta | None = None,
        pure: bool = False,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Declare an operator; the function takes the DataFrames of its inputs and gives one.

        Args:
            attributes: Attributes for the planner; full-dam operators end a stage.
            inputs: Names of the inputs. Default: the names of the function's parameters.
            name: Default: the function's name.
            keyed: The columns that its inputs are partitioned by: `"k"`, `["a", "b"]`, or by input, `{"rates": "k"}`;
                other inputs are passed through. A full-dam operator without an internal sorter gets these inputs
                sorted, with all rows of a key together. True: the function itself groups its inputs, for example with
                `groupBy`; nothing is sorted then.
            chained: Whether the operator runs with its only input, if that input is not keyed and takes as many slots:
                after a full-dam operator it is then computed and committed with it. Default: True, except for full-dam
                operators, and for operators after a sort, which read its rows back in their order. With False the
                operator runs where its rows are read: in a live stage it is computed in each micro-batch.
            exchange: How rows are handed over: `"blocking"` commits them before this operator's stage is deployed,
                `"pipelined"` computes them in this stage, also after a full-dam operator; or by input, as
                `{"rates": "blocking"}`. Default: blocking after a full-dam operator.
            parallelism: The maximum number of tasks, also for what Spark computes in the same tasks; and the number of
                slots. Default: as many tasks as Spark makes, and one slot.
            refresh: Interval at which its committed result is computed again while a live stage reads it: a timedelta,
                or a text such as `"6h"`. The results that it reads, and those that read it, are computed again too,
                unless the sources have not changed. Then the live queries are stopped between two micro-batches, and
                restarted from their checkpoints with the new results. A refresh that fails leaves the old results and
                the running queries in place, and is tried again. Default: never.
            pure: The function and its UDFs give the same rows for the same inputs, whatever they read outside of the
                pipeline: files, the environment, the arguments of the program, the time, random numbers, the network.
                Default: each new run computes a stage whose UDFs read one of these, or whose plan does not show what it
                reads, and `run.explain()` says what that is. With True the stage's result is reused.
        """
        _refuse(misplaced, "op")

        return self._declaring(
            VertexKind.OPERATOR,
            name,
            inputs,
            attributes=attributes,
            keyed=keyed,
            chained=chained,
            exchange=exchange,
            parallelism=parallelism,
            refresh=refresh,
            pure=pure,
        )

    def sink(
        self,
        *misplaced: Never,
        trigger: Mapping[str, Any] | None = None,
        inputs: Sequence[str] | None = None,
        name: str | None = None,
        exchange: Exchange | None = None,
        parallelism: int | None = None,
        pure: bool = False,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Declare a sink; the function takes the DataFrames of its inputs and gives a writer that is not started.

        A live query continues from its checkpoint in the store. A writer may have its own `checkpointLocation`, for
        example from before the query was staged. It is used from then on if it is new, or the checkpoint of a query
        with the same sources, and the query has made no progress elsewhere; otherwise the run refuses it. A run with
        `resume=False` refuses a location that contains a checkpoint: it removes only the checkpoints in the store.

        Args:
            trigger: Arguments of `DataStreamWriter.trigger`, for a live sink: `{"processingTime": "1 second"}`.
            inputs: Names of the inputs. Default: the names of the function's parameters.
            name: Default: the function's name. It names a live sink's checkpoint, and its query if the writer has no
                `queryName`.
            exchange: See `op`.
            parallelism: The maximum number of tasks that write, and the number of slots. Default: see `op`.
            pure: See `op`. With True, a bounded sink is not written again because its function reads, for example, the
                time.
        """
        _refuse(misplaced, "sink")

        return self._declaring(
            VertexKind.SINK,
            name,
            inputs,
            trigger=trigger,
            exchange=exchange,
            parallelism=parallelism,
            pure=pure,
        )

    def _declaring(
        self, kind: VertexKind, name: str | None, inputs: Sequence[str] | None, **how: Any
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        def declare(function: Callable[_P, _R]) -> Callable[_P, _R]:
            self.declare(name or function.__name__, kind, function, inputs=_inputs(function, inputs), **how)
            return function

        return declare

    def seam(self, name: str) -> str:
        """Where a back-fill ends and its live stream begins: one value for both sources' options.

        `endingPosition` of the bounded read and `initialPosition` of the stream: the time at which the first of them
        was planned. It stays the same over restarts, until a run that does not resume. In a store on S3 the sources
        reach it with their own credentials and region, at S3's own endpoint or AWS_ENDPOINT_URL_S3.
        """
        folder = safe_name(name)
        if (other := self._seams.setdefault(folder, name)) != name:
            raise PipelineDefinitionError(
                f"the seams {name!r} and {other!r} of pipeline {self.name!r} ({self.site}) would have one file, "
                f"{folder!r}: give one of them another name"
            )
        file = f"seams/{folder}.json"
        if isinstance(self.place.store, Path):
            return str((self.place.store / file).absolute())
        if self.place.store.is_s3:
            return self.place.store.below(file).url
        raise PipelineDefinitionError(
            f"seam {name!r} ({caller(also_skip=(_PACKAGE,))}) cannot be in {self.place.store.shown}, which has no "
            "conditional writes: give endingPosition and initialPosition one path of a file "
            "that the driver has whenever it runs, or s3://BUCKET/KEY"
        )

    def graph(self) -> JobGraph:
        """The job graph, as the planner takes it."""
        graph, endless = JobGraph(self.name), self._endless()
        for one in self._declared.values():
            parallelism = 1 if one.parallelism is None else one.parallelism
            if one.kind is VertexKind.SOURCE:
                graph.add_source(
                    one.name,
                    boundedness=Boundedness.BOUNDED if one.bounded else Boundedness.UNBOUNDED,
                    parallelism=parallelism,
                    call_site=one.call_site,
                )
            elif one.kind is VertexKind.OPERATOR:
                full_dam = one.full_dam_when_bounded and one.name not in endless
                graph.add_operator(
                    one.name,
                    *_edges(one),
                    attributes=_sorts_itself(one, _FULL_DAM if full_dam else one.attributes),
                    chained=self._chained(one),
                    parallelism=parallelism,
                    call_site=one.call_site,
                )
            else:
                graph.add_sink(one.name, *_edges(one), parallelism=parallelism, call_site=one.call_site)
        return graph

    def compile(self) -> StagePlan:
        """The stages; `penstock.operator_attributes` renders them: `explain`, `mermaid`, `graphviz`, `svg`, `html`.

        Raises:
            penstock.operator_attributes.errors.CompileError: it cannot be planned; names the place in the user's code.
            PipelineDefinitionError: a sink has a trigger that would be ignored.
        """
        plan = self._plan()
        for warning in self._warnings():
            _log.warning("%s", warning)
        return plan

    def explain(self, spark: SparkSession | None = None) -> Explanation:
        """The stages as text, before anything runs, and warnings; a notebook shows them line by line.

        Args:
            spark: With a session, the functions of the sources and operators are called in it, to name what a live
                stage would compute again in each micro-batch (an aggregate, sort or other full-dam operation over
                bounded rows that no `attributes` declare), and what makes each new run compute a bounded stage. No job
                is started, unless a function starts one. Without a session, only the declarations are read, and the
                text says so.

        Raises:
            penstock.operator_attributes.errors.CompileError: as in `compile`, as for the next.
            PipelineDefinitionError: as in `compile`; with a session also for a function that returns what it must not.
            Exception: with a session, what a function raises, with its name and place as a note.
        """
        plan = self._plan()
        text, warnings = str(explain(plan)), self._warnings()
        if spark is not None:
            from penstock.spark_plugin._stages.run.start import find_warnings

            warnings += find_warnings(self, plan, spark)
        elif not all(stage.bounded for stage in plan.stages):
            text += (
                "\nnote: no function was called. pipeline.explain(spark) calls them, and names what live stages would "
                "compute again in each micro-batch because it is not declared\n"
            )
        for one in find_refreshes(self._declared, plan):
            text += f"\nrefresh: {one.operator!r} is computed again every {seconds_text(one.every_seconds)}\n"
        return Explanation(text + "".join(f"\nwarning: {warning}\n" for warning in warnings))

    def readers(self) -> dict[str, list[Declared]]:
        """The live sinks that read an unbounded source, by its name: each is a query, which reads it separately."""
        found: dict[str, list[Declared]] = {}
        for sink in self._declared.values():
            if sink.kind is VertexKind.SINK:
                pending, above = [sink.name], {sink.name}
                while pending:
                    new = [one for one in self._declared[pending.pop()].inputs if one in self._declared.keys() - above]
                    above.update(new)
                    pending += new
                for one in self._declared.values():
                    if one.name in above and one.kind is VertexKind.SOURCE and not one.bounded:
                        found.setdefault(one.name, []).append(sink)
        return found

    def _plan(self) -> StagePlan:
        plan, endless = compile(self.graph(), cyclic_regions=self.cyclic_regions), self._endless()
        for one in self._declared.values():
            if one.trigger is not None and one.name not in endless:
                raise PipelineDefinitionError(
                    f"{named([one])} has the trigger {one.trigger!r}, but all that it reads is bounded, and a batch "
                    "write has none: leave the trigger out, or declare its source with bounded=False"
                )
        find_refreshes(self._declared, plan)
        return plan

    def _warnings(self) -> list[str]:
        return [
            f"{named([self._declared[source]])} is read {len(sinks)} times, by each of the queries of {named(sinks)}: "
            "write them in one sink by foreachBatch to read it once"
            for source, sinks in self.readers().items()
            if len(sinks) > 1
        ]

    def run(
        self,
        spark: SparkSession,
        *,
        resume: bool = True,
        refresh: bool = False,
        slots: int | None = None,
        max_attempts: int = 3,
        progress: bool | None = None,
        scheduler_endpoint: str | None = None,
        scheduler_security: "ClientSecurity | None" = None,
        lease_seconds: float | None = None,
        restart: Literal["never", "on-failure"] = "never",
        restarts_per_hour: int | None = None,
    ) -> "PipelineRun":
        """Run the bounded stages, each committed before what waits for it, then deploy the live ones.

        Stages that do not wait for each other run side by side. Returns when all bounded stages have ended and all live
        queries run.

        Args:
            spark: The session.
            resume: Continue where the last run stopped: with its committed results, as long as their functions are the
                same, and from the live queries' checkpoints. False: forget both, and start from the beginning.
            refresh: Look at what the sources hold now: stages whose inputs have changed run again. Without it, a run
                after a failed, killed or stopped run keeps the snapshot of that run; if it has no live stage, it warns
                of sources that have changed since. After a run in which all stages ended, the next run always looks.
            slots: Slots for stages that run at the same time, each of which takes its highest `parallelism`. Default:
                no bound.
            max_attempts: Deployments of a stage before it counts as failed.
            progress: Whether to draw bars on the standard error. Default: only if it is a terminal.
            scheduler_endpoint: `host:port` of a stage scheduler service, which decides what may be deployed and which
                of several drivers computes a stage that they share, and shows the progress of the run. Default:
                PENSTOCK_STAGES_ENDPOINT of the environment; without it, or if it is empty, the driver decides alone.
            scheduler_security: TLS and token of that service. Default: the variables of its commands, such as
                PENSTOCK_STAGES_TOKEN_FILE.
            lease_seconds: Time after which this driver computes a stage that a silent driver has claimed. Default: the
                service's, 30.
            restart: `on-failure` restarts a live query that fails, from its checkpoint, until the run is stopped: after
                one second, and after twice as long each time that it fails again without progress, up to five minutes.
                An error that the same micro-batch gives twice in the same way is caused by a record or by the code: the
                stage is FAILED then, unless the name of the error is of a connection, a time-out or the like.
            restarts_per_hour: Restarts of each query, after which its stage is FAILED. Default: 20.

        Raises:
            PipelineDefinitionError: the pipeline has no sink, has a mistake that is found before it runs, has an option
                without effect, or is run by Spark Declarative Pipelines.
            StageFailedError: a stage failed finally, after all others that do not depend on it were run. Its `run` is
                what this would have returned.
            PipelineError: STORE_IN_USE: another driver runs on the store.
            PipelineError: SCHEDULER_UNAVAILABLE: the endpoint does not answer when the run begins.
            penstock.operator_attributes.errors.SchedulingError: INSUFFICIENT_SLOTS: the live stages need more slots.
        """
        from penstock.spark_plugin._stages.run.failures import RestartPolicy
        from penstock.spark_plugin._stages.run.start import RunSettings, run_pipeline

        refuse_in_definitions(f"pipeline {self.name!r} ({self.site})")
        if not self._declared:
            raise PipelineDefinitionError(
                f"pipeline {self.name!r} ({self.site}) is empty: declare its functions by @pipeline.source(…), "
                "@pipeline.op() and @pipeline.sink() before it is run"
            )
        if all(one.kind is not VertexKind.SINK for one in self._declared.values()):
            raise PipelineDefinitionError(
                f"pipeline {self.name!r} ({self.site}) has no sink, so that nothing would be written: declare one by "
                "@pipeline.sink()"
            )
        settings = RunSettings(
            resume=resume,
            refresh=refresh,
            slots=slots,
            max_attempts=max_attempts,
            progress=progress,
            scheduler_endpoint=scheduler_endpoint,
            scheduler_security=scheduler_security,
            lease_seconds=lease_seconds,
            restarts=RestartPolicy.of(restart, restarts_per_hour),
        )
        return run_pipeline(self, spark, settings)

    def clean_up(self) -> int:
        """Remove results that no run uses; returns the bytes. A run that succeeds does so automatically.

        If a stage scheduler decides which driver may write in the store, PENSTOCK_STAGES_ENDPOINT names it.

        Raises:
            PipelineError: STORE_IN_USE: a driver runs on the store.
        """
        from penstock.spark_plugin._stages.run.start import open_service

        with contextlib.ExitStack() as opened:
            service = open_service(None, None)
            if service is not None:
                opened.callback(service.close)
            return opened.enter_context(self.place.open(service)).clean_up()

    def read(
        self,
        name: str,
        *,
        format: str,
        bounded: bool,
        schema: str | None = None,
        options: Mapping[str, str] | None = None,
        parallelism: int | None = None,
        fingerprint: str | None = None,
    ) -> "DataStream":
        """Declare a source of any format that Spark knows: a batch read if it is bounded, a stream if not."""
        given = dict(options or {})

        def read(spark: SparkSession) -> Any:
            reader: Any = spark.read if bounded else spark.readStream
            if schema is not None:
                reader = reader.schema(schema)
            return reader.format(format).options(**given).load()

        self.declare(
            name,
            VertexKind.SOURCE,
            read,
            bounded=bounded,
            parallelism=parallelism,
            fingerprint=fingerprint,
            site=caller(also_skip=(_PACKAGE,)),
        )
        return self.stream(name)

    def stream(self, name: str) -> "DataStream":
        """The rows of a source or operator, to add operators to: `stream("weather").key_by("origin")…`."""
        from penstock.spark_plugin._stages.declare.data_stream import DataStream

        return DataStream(self, name)

    def declare(
        self, name: str, kind: VertexKind, function: Callable[..., Any], *, inputs: Sequence[str] = (), **how: Any
    ) -> None:
        """Add a function under a name; `how` are the other fields of `Declared`. The decorators are the usual way."""
        self._add(Declared(name=name, kind=kind, function=function, inputs=tuple(inputs), **how))

    def _chained(self, one: Declared) -> bool | None:
        sources = [self._declared[source] for source in one.inputs if source in self._declared]
        if one.chained is None and any(source.order is not None for source in sources):
            return False  # a sort that is committed alone is read back in its order; what was made of it is not
        return one.chained

    def _endless(self) -> set[str]:
        """Names of what never ends, or reads something that does not."""
        readers: dict[str, list[str]] = {}
        for one in self._declared.values():
            for source in one.inputs:
                readers.setdefault(source, []).append(one.name)
        sources = (one for one in self._declared.values() if one.kind is VertexKind.SOURCE)
        pending = [one.name for one in sources if not one.bounded]
        found = set(pending)
        while pending:
            new = set(readers.get(pending.pop(), ())) - found
            found |= new
            pending += new
        return found

    def _add(self, one: Declared) -> None:
        if one.name in self._declared:
            raise PipelineDefinitionError(
                f"{one.name!r} ({one.call_site}) is declared already ({self._declared[one.name].call_site})"
            )
        folder = safe_name(one.name)
        other = self._folders.setdefault(folder, one)
        if other is not one:
            raise PipelineDefinitionError(
                f"{one.name!r} ({one.call_site}) and {other.name!r} ({other.call_site}) would have one folder, "
                f"{folder!r}: give one of them another `name=`"
            )
        if one.trigger is not None:
            _check_trigger(one)
        if one.fingerprint is not None and not one.bounded:
            raise PipelineDefinitionError(
                f"{named([one])} has a fingerprint, and no stage that reads a stream is used again: leave it out"
            )
        if isinstance(one.keyed, Mapping) and (unknown := sorted(one.keyed.keys() - set(one.inputs))):
            raise PipelineDefinitionError(
                f"{named([one])} is keyed by columns of {', '.join(map(repr, unknown))}, which it does not read: "
                f"it reads {', '.join(map(repr, one.inputs))}"
            )
        given = one.exchange if isinstance(one.exchange, Mapping) else dict.fromkeys(one.inputs, one.exchange)
        if not given.keys() <= set(one.inputs) or not set(given.values()) <= {None, *_MODES}:
            modes = " or ".join(repr(str(mode)) for mode in _MODES)
            raise PipelineDefinitionError(
                f"{named([one])} has the exchange {one.exchange!r}: give {modes}, or either by one of its inputs, "
                f"{', '.join(map(repr, one.inputs))}"
            )
        self._declared[one.name] = one


def refuse_in_definitions(subject: str) -> None:
    """Refuse a staged job in what Spark Declarative Pipelines reads as definitions: it would run beside their graph.

    Raises:
        PipelineDefinitionError: `subject` is started there.
    """
    # Spark has the module from 4.1 on, and has imported it where it reads definitions.
    module = sys.modules.get("pyspark.pipelines.graph_element_registry")
    if module is None:
        return
    try:
        module.get_active_graph_element_registry()
    except PySparkException:
        return
    raise PipelineDefinitionError(
        f"{subject} cannot run inside of Spark Declarative Pipelines, whose files and functions only define what "
        "`spark-pipelines` runs: start it as a job of its own (`python job.py`), and let the definitions read what it "
        "writes"
    )


def _sorts_itself(one: Declared, attributes: OperatorAttributes | None) -> OperatorAttributes | None:
    """The attributes for the planner: nothing is sorted for an operator that names no keys."""
    if one.keyed is True and isinstance(attributes, OperatorAttributes):
        return replace(attributes, internal_sorter_supported=True)
    return attributes


def _edges(one: Declared) -> list[Input]:
    return [
        Input(
            source,
            keyed=one.keyed is True or bool(one.keys_of(source)),
            partition_type=ResultPartitionType(one.exchange_of(source)),
        )
        for source in one.inputs
    ]


def _refuse(misplaced: Sequence[object], decorator: str, arguments: str = "") -> None:
    """Refuse arguments by position: the function itself, or a name."""
    if misplaced:
        example = f"write `@pipeline.{decorator}({arguments})`"
        if callable(function := misplaced[0]) and len(misplaced) == 1:
            name = getattr(function, "__name__", type(function).__name__)
            raise PipelineDefinitionError(f"{name!r} ({place_of(function)}) is declared without parentheses: {example}")
        site = caller(also_skip=(_PACKAGE,))
        raise PipelineDefinitionError(f"{site}: `{decorator}` takes arguments by name alone: {example}")


def _check_trigger(one: Declared) -> None:
    known = ", ".join(name for name in inspect.signature(DataStreamWriter.trigger).parameters if name != "self")
    wrong = ""
    if not isinstance(one.trigger, Mapping):
        wrong = "which is not a mapping such as {'processingTime': '1 second'}"
    elif not set(one.trigger) <= set(known.split(", ")):
        wrong = "which Spark does not know"
    if wrong:
        raise PipelineDefinitionError(f"{named([one])} has the trigger {one.trigger!r}, {wrong}: give one of {known}")


def _inputs(function: Callable[..., Any], inputs: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(inputs, str):
        raise PipelineDefinitionError(
            f"{function.__name__!r} ({place_of(function)}) has inputs={inputs!r}, which is one text: write "
            f"inputs=[{inputs!r}]"
        )
    if inputs is not None:
        return tuple(inputs)
    parameters = inspect.signature(function).parameters.values()
    names = tuple(
        one.name
        for one in parameters
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
    )
    if not names:
        raise PipelineDefinitionError(
            f"{function.__name__!r} ({place_of(function)}) reads nothing: name its inputs as its parameters"
        )
    return names
