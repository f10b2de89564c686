"""The automatic mode: an ordinary DataFrame, cut into stages where its plan has to wait."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.operator_attributes import OperatorAttributes, StagePlan, VertexKind, caller
from penstock.spark_plugin._stages.declare.pipeline import Pipeline, refuse_in_definitions
from penstock.spark_plugin._stages.plans.plan import PlanNode, Plans, find_cuts, plans_of, stage_plan, titles
from penstock.spark_plugin._stages.store.pins import safe_name
from penstock.spark_plugin.errors import PipelineDefinitionError

if TYPE_CHECKING:
    from penstock.rpc import ClientSecurity
    from penstock.spark_plugin._stages.run.pipeline_run import PipelineRun

_PACKAGE = str(Path(__file__).resolve().parents[2])
_FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
_STAGED = "staged"
_OUTPUT = "output"


def plan(frame: DataFrame, *, output_mode: str = "append") -> StagePlan:
    """The stages of an ordinary DataFrame, as `run_staged` would run them; nothing is run.

    Args:
        frame: A DataFrame of a classic session or of Spark Connect.
        output_mode: The output mode of the query that it is meant for.

    Raises:
        penstock.operator_attributes.errors.FullDamOverUnboundedError: an operator would wait for the end of a stream.
        PipelineDefinitionError: the argument is not a DataFrame.
    """
    site = caller(also_skip=(_PACKAGE,))
    if not isinstance(frame, DataFrame):
        raise PipelineDefinitionError(f"{site}: plan takes a DataFrame, not a {type(frame).__name__}")
    root = plans_of(frame).read(frame)
    return stage_plan(root, find_cuts(root, output_mode=output_mode, site=site))


def run_staged(
    writer: DataStreamWriter,
    *,
    store: str | Path,
    store_options: Mapping[str, str] | None = None,
    name: str = "staged",
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
    """Start the query of a writer that is not started, its bounded parts that block finished and committed first.

    The query gives the rows that `writer.start()` gives. What each micro-batch would compute again is computed once,
    kept in the store, and reused after a restart.

    Args:
        writer: `df.writeStream…`. With a `checkpointLocation` in which its query has made progress, the query continues
            from there; without one the checkpoint is in the store. See `Pipeline.sink`.
        store: As of a `Pipeline`.
        store_options: As of a `Pipeline`.
        name: The name of the job, and of the query if the writer has no `queryName`.
        resume: See `Pipeline.run`, as for all that follow.
        refresh: See there.
        slots: See there.
        max_attempts: See there.
        progress: See there.
        scheduler_endpoint: See there.
        scheduler_security: See there.
        lease_seconds: See there.
        restart: See there.
        restarts_per_hour: See there.

    Raises:
        penstock.operator_attributes.errors.FullDamOverUnboundedError: an operator would wait for the end of a stream.
        PipelineDefinitionError: it is not a stream's writer, was started, is one of Spark Connect whose columns refer
            to half of a blocking part, or is started by the definitions of Spark Declarative Pipelines.
        StageFailedError: as in `Pipeline.run`.
        PipelineError: STORE_IN_USE, SCHEDULER_UNAVAILABLE: as in `Pipeline.run`.
    """
    site = caller(also_skip=(_PACKAGE,))
    refuse_in_definitions(f"run_staged ({site})")
    _check_writer(writer, site)
    plans = plans_of(writer)
    frame = plans.written(writer)
    pipeline = _pipeline(writer, store, store_options, name, site)
    try:
        return pipeline.run(
            frame.sparkSession,
            resume=resume,
            refresh=refresh,
            slots=slots,
            max_attempts=max_attempts,
            progress=progress,
            scheduler_endpoint=scheduler_endpoint,
            scheduler_security=scheduler_security,
            lease_seconds=lease_seconds,
            restart=restart,
            restarts_per_hour=restarts_per_hour,
        )
    finally:
        plans.write_instead(writer, frame)


def _check_writer(writer: object, site: str) -> None:
    kind = type(writer).__name__  # the same for sessions of both kinds
    if kind == "DataStreamWriter":
        return
    cures = {
        "DataFrame": ": write `run_staged(df.writeStream.format(…), store=…)`",
        "DataFrameWriter": ": a batch job is one stage already",
        "StreamingQuery": ": leave `.start()` out",
    }
    raise PipelineDefinitionError(
        f"{site}: run_staged takes a DataStreamWriter that is not started (`df.writeStream…`), not a {kind}"
        + cures.get(kind, "")
    )


def _pipeline(
    writer: DataStreamWriter, store: str | Path, options: Mapping[str, str] | None, name: str, site: str
) -> Pipeline:
    plans = plans_of(writer)
    frame = plans.written(writer)
    root = plans.read(frame)
    if not root.streaming:
        raise PipelineDefinitionError(f"{site}: run_staged takes a stream; a batch job is one stage already")
    cuts = find_cuts(root, output_mode=plans.output_mode(writer), site=site)
    plans.check(frame, root, cuts)
    pipeline = Pipeline(name, store=store, store_options=options)

    def declare(one: str, kind: VertexKind, function: Any, **how: Any) -> None:
        pipeline.declare(one, kind, function, **{"code": "automatic", "site": site, **how})

    called = titles(root, cuts)
    taken = {_STAGED, _OUTPUT, *(called[cut.name] for cut in cuts)}
    stream = _source_name(called, root, taken)
    declare(stream, VertexKind.SOURCE, lambda _: frame)
    for cut in cuts:
        _declare_cut(declare, plans, frame, root, cut, called[cut.name], _source_name(called, cut, taken))
    names = [cut.name for cut in cuts]

    def live(_: DataFrame, *committed: DataFrame) -> DataFrame:
        return plans.rebuild(frame, root, dict(zip(names, committed, strict=True)))

    declare(_STAGED, VertexKind.OPERATOR, live, inputs=(stream, *(called[name] for name in names)))
    declare(
        _OUTPUT,
        VertexKind.SINK,
        lambda staged: plans.write_instead(writer, staged),
        inputs=(_STAGED,),
        # Staged again, the writer must not begin with what was committed for this run.
        started=lambda: plans.write_instead(writer, frame),
    )
    return pipeline


def _source_name(called: Mapping[str, str], part: PlanNode, taken: set[str]) -> str:
    """What a part of a plan reads, by a name that nothing else has."""
    leaves = dict.fromkeys(
        called[node.name] for node in part.nodes() if not node.children and node.streaming == part.streaming
    )
    name = " and ".join(leaves)
    while any(safe_name(name) == safe_name(one) for one in taken):
        name += "-input"
    taken.add(name)
    return name


def _declare_cut(
    declare: Any, plans: Plans, frame: DataFrame, root: PlanNode, cut: PlanNode, name: str, source: str
) -> None:
    rows = plans.part(frame, cut)
    dam = cut.dam()
    place = dam.call_site if dam is not None else ""
    # The plan is the code of a stage; the files below it are what it reads.
    code = plans.look(rows).fingerprint
    declare(source, VertexKind.SOURCE, lambda _: rows, bounded=True, site="", code=code)
    declare(
        name,
        VertexKind.OPERATOR,
        lambda frame: frame,
        inputs=(source,),
        attributes=_FULL_DAM,
        site=place,
        keys=plans.join_keys(frame, root, cut),
    )
