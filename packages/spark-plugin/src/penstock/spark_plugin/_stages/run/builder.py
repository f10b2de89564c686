"""Builds the DataFrames of a stage from the pipeline's functions."""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from penstock.operator_attributes import Stage, StagePlan, VertexKind
from penstock.operator_attributes.errors import FullDamOverUnboundedError
from penstock.spark_plugin._stages.declare.declared import Declared, named
from penstock.spark_plugin._stages.fingerprints.code import Looked, digest, is_unique, look_at, unique
from penstock.spark_plugin._stages.fingerprints.stage import (
    code_fingerprint,
    look_at_source,
    query_of,
    stage_fingerprint,
)
from penstock.spark_plugin._stages.plans.jobs import is_writer, jobs_of
from penstock.spark_plugin._stages.plans.plan import Look, find_cuts, plans_of
from penstock.spark_plugin._stages.run.failures import words
from penstock.spark_plugin._stages.store.pins import Pin, RunPins
from penstock.spark_plugin._stages.store.result import CommittedStage, StageResult
from penstock.spark_plugin._stages.store.store import StageStore
from penstock.spark_plugin.errors import PipelineDefinitionError

_log = logging.getLogger(__name__)


class Kept:
    """DataFrames with equal rows that Spark keeps in memory until the last holder releases them.

    Spark caches equal plans once: releasing one of them would release it for all readers.
    """

    def __init__(self) -> None:
        self._frames: list[DataFrame] = []
        self._holders = 0
        self._lock = threading.Lock()

    def hold(self, number: int, create: Callable[[], DataFrame]) -> DataFrame:
        """The DataFrame of this number, persisted; `create` makes it when it is asked for the first time."""
        with self._lock:
            if number == len(self._frames):
                self._frames.append(create())
            self._holders += 1
            return self._frames[number].persist()

    def release(self) -> None:
        """Undo one `hold`."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                for frame in self._frames:
                    frame.unpersist()


class StageBuilder:
    """Builds DataFrames, and names the results that they represent. One per run: it builds each source once.

    Concurrent stages share it: the pipeline's functions are called one at a time.
    """

    def __init__(
        self,
        declared: Mapping[str, Declared],
        plan: StagePlan,
        spark: SparkSession,
        store: StageStore,
        pins: Mapping[str, Pin] | None = None,
    ) -> None:
        self._declared = declared
        self._plan = plan
        self._spark = spark
        # Nothing is stored where a plan is only explained.
        self._jobs = jobs_of(spark, store.scope() if store is not None else "")
        self.store = store
        """The store of the results."""
        self._pins = pins or {}
        self._lock = threading.RLock()
        self._sources: dict[str, DataFrame] = {}
        self._looks: dict[str, Look] = {}
        self._used: dict[str, Pin] = {}
        self._held: dict[str, str] = {}
        self._dams: set[tuple[str, str]] = set()
        self._read: dict[str, Kept] = {}
        self._asked: Counter[str] = Counter()
        self._functions: dict[str, Looked] = {}
        self._built: dict[str, dict[str, DataFrame]] = {}
        self._plans: dict[str, dict[str, str]] = {}
        self._world: dict[str, dict[str, None]] = {}
        self.warnings: list[str] = []
        """What was found in the functions of stages that should be declared, and in what sources hold."""
        self.kept: dict[str, list[Kept]] = {}
        """What is kept in memory, by id of the stage that reads it: committed results for as long as a live stage runs,
        and what a bounded stage that runs needs twice."""

    def again(self, pins: Mapping[str, Pin]) -> "StageBuilder":
        """A builder of the same run that looks at the sources again, except for the sources of the pinned results."""
        one = StageBuilder(self._declared, self._plan, self._spark, self.store, pins)
        one.warnings, one._dams = self.warnings, self._dams
        # Unchanged results stay in memory once: Spark recognises some results only by their DataFrame.
        one._read = self._read
        return one

    @property
    def used(self) -> dict[str, Pin]:
        """The results that the run uses, by name of their stage; of a stage that is still to come, the one before."""
        with self._lock:
            used = {self.name(self._plan.stage(stage_id)): pin for stage_id, pin in self._used.items()}
            # Released now, they would be missing for the next driver if this one is killed before it reaches them.
            coming = {self.name(stage) for stage in self._plan.stages} & self._pins.keys()
            return {name: self._pins[name] for name in coming} | used

    def pin(self, *, ended: bool = False, refreshing: Mapping[str, Pin] | None = None) -> None:
        """Pin the results that the run uses, so that no driver removes them."""
        self.store.pin(
            RunPins(
                pipeline=self._plan.name,
                store=self.store.name,
                stages=self.used,
                ended=ended,
                refreshing=refreshing or {},
            )
        )

    def name(self, stage: Stage) -> str:
        """A stage's name, with a suffix if the plan has another stage of the same name."""
        if sum(one.name == stage.name for one in self._plan.stages) == 1:
            return stage.name
        return f"{stage.name}~{digest(*stage.vertices)[:8]}"

    def declared(self, name: str) -> Declared:
        """What was declared by that name."""
        return self._declared[name]

    def folder(self, stage: Stage) -> StageResult:
        """The place of a bounded stage's result."""
        return self.store.stage(self.name(stage), self.fingerprint(stage))

    def fingerprint(self, stage: Stage) -> str:
        """The fingerprint of a bounded stage: functions, what its sources read, its inputs, and its operators' plans.

        In a run that continues, a committed result is kept as long as the functions and the plans are the same. The
        results that the stage reads have to be committed: its operators are called with them.

        Raises: what the functions of its sources and operators raise.
        """
        with self._lock:
            if stage.id not in self._used:
                self._used[stage.id] = self._pin(stage)
            return self._used[stage.id].fingerprint

    def forget(self, stage: Stage) -> None:
        """Find a stage's fingerprint again: its committed result is gone, and its sources may have changed."""
        with self._lock:
            for found in (self._used, self._built, self._plans, self._world):
                found.pop(stage.id, None)
            for name in stage.vertices:
                self._held.pop(name, None)

    def _pin(self, stage: Stage) -> Pin:
        inputs = {
            self.name(before): self.fingerprint(before) for before in map(self._plan.stage, stage.blocking_inputs)
        }
        functions = [self._declared[name] for name in stage.vertices]
        code = code_fingerprint(self._spark, [(one, self._look_at_function(one)) for one in functions])
        pin = self._pins.get(self.name(stage))
        kept = None
        if pin is not None and (pin.code, dict(pin.inputs)) == (code, inputs):
            kept = pin if self._committed_by(stage, pin.fingerprint) is not None else None
        try:
            plans = self._look_at_plans(stage)
        except Exception as error:
            if kept is None:
                raise
            self._warn(
                f"stage {stage.name!r} cannot be built, so that its result of the run that this one continues is used "
                f"without a look at its plan: {words(error)}"
            )
            return kept
        if kept is not None and kept.plans == plans:
            return kept
        looked = {one.name: self._look(one.name) for one in functions if one.kind is VertexKind.SOURCE}
        for one in functions:
            function = self._look_at_function(one)
            reasons = list(looked[one.name].world) if one.name in looked else []
            if one.kind is VertexKind.SINK or is_unique(function.fingerprint):
                # What the functions of sources and operators read is in the plans.
                reasons += function.world
            self._is_of_the_world(stage, one, reasons)
        found = {name: look.fingerprint for name, look in looked.items()}
        sources = {name: self._held.setdefault(name, one) for name, one in found.items()}
        fingerprint = digest(stage_fingerprint(code, inputs, found.values()), plans)
        self._committed_by(stage, fingerprint)
        if stage.id in self._world:
            fingerprint = digest(fingerprint, unique())
        return Pin(fingerprint=fingerprint, code=code, inputs=inputs, sources=sources, plans=plans)

    def _look_at_function(self, one: Declared) -> Looked:
        if one.name not in self._functions:
            is_planned = one.kind is not VertexKind.SINK
            looked = Looked(one.code, ()) if one.code else look_at(one.function, shows_in_plan=is_planned)
            self._functions[one.name] = looked
        return self._functions[one.name]

    def _look_at_plans(self, stage: Stage) -> str:
        """Build the DataFrames of a bounded stage; returns the fingerprint of their plans and its sources' queries."""
        built = self._built.setdefault(stage.id, {})
        found = []
        # Their functions may run jobs.
        with self._jobs.group(self.name(stage), f"{self._plan.name}: stage {stage.name}", None):
            for one in (self._declared[name] for name in stage.vertices):
                if one.kind is VertexKind.SOURCE and not one.fingerprint:
                    found.append(query_of(self._source(one.name), self._look_at_plan(one.name)))
                elif one.kind is VertexKind.OPERATOR:
                    self._build(stage, one.name, built)
                    found.append(self._plans[stage.id][one.name])
        return digest(*found)

    def _committed_by(self, stage: Stage, fingerprint: str) -> CommittedStage | None:
        result = self.store.stage(self.name(stage), fingerprint).committed()
        if result is not None and result.world:
            # This comes from a sink, whose function is called only when it writes.
            self._world.setdefault(stage.id, {})
        return result

    def _look(self, source: str) -> Look:
        """What a source holds now."""
        given = self._declared[source].fingerprint
        if given:
            return Look(given)
        return look_at_source(self._source(source), self._look_at_plan(source))

    def _look_at_plan(self, source: str) -> Look:
        if source not in self._looks:
            frame = self._source(source)
            self._looks[source] = plans_of(frame).look(frame)
        return self._looks[source]

    def check_snapshots(self) -> None:
        """Warn of a source that had changed between the stages that read it, or since: some of them were used again."""
        with self._lock:
            held: dict[str, dict[str, list[str]]] = {}
            for stage_id, pin in self._used.items():
                for source, fingerprint in pin.sources.items():
                    held.setdefault(source, {}).setdefault(fingerprint, []).append(self._plan.stage(stage_id).name)
            for source, states in held.items():
                if source not in self._declared:
                    continue
                groups = " and of ".join(", ".join(map(repr, names)) for names in states.values())
                if len(states) > 1:
                    self._warn(
                        f"{named([self._declared[source]])} has changed between the stages that read it: the rows of "
                        f"{groups} are of different states; run(spark, refresh=True) computes them from one"
                    )
                elif self._has_changed(source, *states):
                    self._warn(
                        f"{named([self._declared[source]])} has changed since the run that this one continues: the "
                        f"rows of {groups} are of what it held then; run(spark, refresh=True) computes them again"
                    )

    def _has_changed(self, source: str, before: str) -> bool:
        """Whether a source that the run has not looked at has changed since the results that the run continues with.

        Not asked of a run with a live stage, which is to keep them until it is refreshed.
        """
        if source in self._held or is_unique(before) or not all(stage.bounded for stage in self._plan.stages):
            return False
        try:
            now = self._look(source).fingerprint
        except Exception:  # the results do not need it any more
            _log.debug("source %s cannot be looked at", source, exc_info=True)
            return False
        return now != before and not is_unique(now)

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        _log.warning("%s", text)

    def begin(self, stage: Stage) -> None:
        """Keep in memory what a bounded stage, which is to be computed, needs twice."""
        with self._lock:
            self.fingerprint(stage)
            for name, frame in self._built[stage.id].items():
                if self._declared[name].kind is VertexKind.OPERATOR and self._is_needed_twice(stage, name):
                    kept = Kept()
                    kept.hold(0, lambda frame=frame: frame)  # type: ignore[misc]
                    self.kept.setdefault(stage.id, []).append(kept)

    def output(self, stage: Stage, name: str) -> DataFrame:
        """The DataFrame of an output of a bounded stage, as it was when its fingerprint was found.

        Raises:
            PipelineDefinitionError: the function returned something else.
        """
        with self._lock:
            self.fingerprint(stage)
            return self._build(stage, name, self._built[stage.id])

    def source(self, name: str) -> DataFrame:
        """The DataFrame of a source. Raises: PipelineDefinitionError: it is not what was declared."""
        with self._lock:
            return self._source(name)

    def writer(self, stage: Stage, name: str) -> Any:
        """What a sink's function gives for its inputs: in a live stage for DataFrames of its own."""
        with self._lock:
            self._asked.clear()
            one = self._declared[name]
            inputs = self._inputs(stage, name, self._built.setdefault(stage.id, {}) if stage.bounded else {})
            try:
                writer = self._call(one, *(_limited(one, frame) for frame in inputs))
            except AnalysisException as error:
                if stage.bounded and error.getCondition() == "CALL_ON_STREAMING_DATASET_UNSUPPORTED":
                    raise _stream_in_bounded(one) from error
                raise
            frame = getattr(writer, "_df", None)
            if stage.bounded and isinstance(frame, DataFrame):
                if frame.isStreaming and is_writer(writer, "DataFrameWriter"):
                    raise _stream_in_bounded(one)
                self._is_of_the_world(stage, one, plans_of(frame).look(frame, inputs).world)
            elif isinstance(frame, DataFrame):
                self._look_for_dams(one, frame)
            return writer

    def let_go(self, stage: Stage) -> None:
        """Release what was kept in memory for a stage."""
        with contextlib.ExitStack() as ending:
            for one in self.kept.pop(stage.id, []):
                ending.callback(one.release)

    def _build(self, stage: Stage, name: str, built: dict[str, DataFrame]) -> DataFrame:
        if name not in built:
            one = self._declared[name]
            if one.kind is VertexKind.SOURCE:
                built[name] = self._source(name)
                if not stage.bounded:
                    self._look_for_dams(one, built[name])
            else:
                inputs = self._inputs(stage, name, built)
                built[name] = _limited(one, _frame(one, self._call(one, *inputs)))
                if stage.bounded and built[name].isStreaming:
                    raise _stream_in_bounded(one)
                if not stage.bounded:
                    self._look_for_dams(one, built[name])
                else:
                    look = plans_of(built[name]).look(built[name], inputs)
                    self._plans.setdefault(stage.id, {})[name] = look.fingerprint
                    self._is_of_the_world(stage, one, look.world)
            if stage.bounded and name in stage.outputs:
                self._check_columns(one, built[name])
        return built[name]

    def _check_columns(self, one: Declared, frame: DataFrame) -> None:
        """Refuse columns that the Parquet files of a committed result cannot distinguish."""
        is_exact = self._spark.conf.get("spark.sql.caseSensitive", "false") == "true"
        counted = Counter(name if is_exact else name.lower() for name in frame.columns)
        if found := [name for name in frame.columns if counted[name if is_exact else name.lower()] > 1]:
            raise PipelineDefinitionError(
                f"{named([one])} gives several columns of one name, {', '.join(map(repr, found))}, and its result is "
                "committed, where each column needs a name of its own: rename or drop all but one, or join by the "
                "names of columns that both sides have, as in left.join(right, 'id')"
            )

    def world(self, stage: Stage) -> str:
        """What the results of a bounded stage depend on and no fingerprint covers, as text; empty for nothing."""
        with self._lock:
            return ", ".join(self._world.get(stage.id, ()))

    def _is_of_the_world(self, stage: Stage, one: Declared, reasons: Sequence[str]) -> None:
        """Have each new run compute a bounded stage, and warn of the reasons."""
        if not reasons or one.pure:
            return
        known = self._world.setdefault(stage.id, {})
        if not known.keys() >= set(reasons):
            self._warn(
                f"{named([one])} reads {' and '.join(reasons)}: whether that changes is not seen, so that each new run "
                "computes its stage again, and writes the sinks again that it reaches; declare what it reads as a "
                "source, or declare it with pure=True if its rows do not depend on that"
            )
        known |= dict.fromkeys(reasons)

    def _is_needed_twice(self, stage: Stage, name: str) -> bool:
        """Whether a bounded stage uses the result of an operator more than once, after its full-dam operators."""
        if name not in stage.batch_vertices and name not in stage.outputs:
            return False
        committed = {(one.source, one.target) for one in stage.inputs}
        readers = sum(
            source == name and (name, target) not in committed
            for target in stage.vertices
            for source in self._declared[target].inputs
        )
        return readers + (name in stage.outputs) > 1

    def _look_for_dams(self, one: Declared, frame: DataFrame) -> None:
        """Warn of what a live stage computes again in each micro-batch because it is not declared as full-dam."""
        if one.code:
            return  # the automatic mode has cut the plan at every full-dam operator
        root = plans_of(frame).read(frame)
        try:
            # Operations that Spark runs on streams, in any output mode, are not refused here.
            cuts = find_cuts(root, output_mode="complete") if root.streaming else [root]
        except FullDamOverUnboundedError:
            return  # Spark reports it
        for dam in filter(None, (cut.dam() for cut in cuts)):
            place = (dam.kind, dam.call_site)
            if place in self._dams:
                continue  # reported for an operator above it
            self._dams.add(place)
            if one.dams:
                continue  # an edge declares that it is computed here
            at = f" at {dam.call_site}" if dam.call_site else ""
            is_alone = one.kind is VertexKind.OPERATOR and not root.streaming
            part = "" if is_alone else ", in an operator of its own"
            self._warn(
                f"{named([one])} holds an undeclared {dam.kind}{at}, which waits for the end "
                "of a bounded input: each micro-batch computes it again; declare it"
                f"{part} with attributes=OperatorAttributes(output_only_after_end_of_stream=True) to compute it once"
            )

    def _inputs(self, stage: Stage, name: str, built: dict[str, DataFrame]) -> list[DataFrame]:
        committed = {one.source: one.stage_id for one in stage.inputs if one.target == name}
        one = self._declared[name]
        frames = [
            self._committed(self._plan.stage(committed[source]), source, stage)
            if source in committed
            else self._build(stage, source, built)
            for source in one.inputs
        ]
        return [_sorted(one, source, frame) for source, frame in zip(one.inputs, frames, strict=True)]

    def _committed(self, stage: Stage, vertex: str, reader: Stage) -> DataFrame:
        folder = self.folder(stage)
        frame = folder.read(self._spark, vertex)
        order = self._declared[vertex].order
        if reader.bounded and order is not None:
            # Files are read in parallel, in no order.
            frame = order(frame)
        if not reader.bounded:
            # Every micro-batch reads it: reading from memory takes less than half of the time.
            result = folder.committed()
            # A result that was lost and computed again has other files.
            name = f"{folder.location} {vertex} {result.seconds if result is not None else 0}"
            kept, rows = self._read.setdefault(name, Kept()), frame
            # A query that reads it twice needs two DataFrames: Spark distinguishes their columns by them.
            frame = kept.hold(self._asked[name], lambda: self._keyed(rows, self._declared[vertex].keys, folder))
            self._asked[name] += 1
            self.kept.setdefault(reader.id, []).append(kept)
        result = folder.committed() if not folder.shows_size else None
        if result is not None and result.size_bytes <= self._jobs.broadcast_bytes():
            # What Spark itself does with files of that size.
            frame = frame.hint("broadcast")
        return frame

    def _keyed(self, frame: DataFrame, keys: tuple[str, ...], folder: StageResult) -> DataFrame:
        """The rows partitioned for a join by these keys: otherwise a large result is shuffled in each micro-batch."""
        committed = folder.committed()
        if not keys or committed is None or committed.size_bytes <= self._jobs.broadcast_bytes():
            return frame
        return frame.repartition(self._jobs.shuffle_partitions(), *keys).sortWithinPartitions(*keys)

    def _source(self, name: str) -> DataFrame:
        if name not in self._sources:
            one = self._declared[name]
            frame = _limited(one, _frame(one, self._call(one, self._spark)))
            if frame.isStreaming == one.bounded:
                said, is_ = ("bounded", "a stream") if one.bounded else ("unbounded", "not a stream")
                raise PipelineDefinitionError(
                    f"source {name!r} ({one.call_site}) is declared {said}, but its DataFrame is {is_}: "
                    f"declare it with bounded={not one.bounded}, or read it with "
                    f"`spark.{'read' if one.bounded else 'readStream'}`"
                )
            self._sources[name] = frame
        return self._sources[name]

    def _call(self, one: Declared, *arguments: object) -> Any:
        self._jobs.tell_lines()
        try:
            return one.function(*arguments)
        except Exception as error:
            error.add_note(f"in {one.name!r}" + (f" ({one.call_site})" if one.call_site else ""))
            raise


def _stream_in_bounded(one: Declared) -> PipelineDefinitionError:
    return PipelineDefinitionError(
        f"{named([one])} reads a stream, though all of its inputs are bounded, so that its stage would never end: "
        "declare the stream with @pipeline.source(bounded=False), and name that source as an input; or read it with "
        "`spark.read`"
    )


def _sorted(one: Declared, source: str, frame: DataFrame) -> DataFrame:
    """An input for a full-dam operator: sorted by key, if the operator names one."""
    keys = one.keys_of(source)
    if not keys or not one.wants_sorted:
        return frame
    missing = [key for key in keys if key not in frame.columns]
    if missing:
        raise PipelineDefinitionError(
            f"operator {one.name!r} ({one.call_site}) is keyed by {', '.join(map(repr, missing))}, which its input "
            f"{source!r} does not have: its columns are {', '.join(map(repr, frame.columns))}"
        )
    columns = [f"`{key.replace('`', '``')}`" for key in keys]
    return frame.repartition(*columns).sortWithinPartitions(*columns)


def _limited(one: Declared, frame: DataFrame) -> DataFrame:
    """The frame in at most as many tasks as the declared parallelism."""
    return frame if one.parallelism is None else frame.coalesce(one.parallelism)


def _frame(one: Declared, value: object) -> DataFrame:
    if not isinstance(value, DataFrame):
        raise PipelineDefinitionError(
            f"{one.name!r} ({one.call_site}) must give a DataFrame, not {type(value).__name__}"
        )
    return value
