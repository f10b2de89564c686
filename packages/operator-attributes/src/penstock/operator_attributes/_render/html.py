"""A plan as one HTML page: no script, no other file, nothing loaded from anywhere."""

from collections.abc import Mapping

from penstock.operator_attributes._compile.plan import StagePlan
from penstock.operator_attributes._render.svg import svg
from penstock.operator_attributes._render.templates import render
from penstock.operator_attributes._render.words import bytes_text, seconds_text
from penstock.operator_attributes._schedule.estimate import Estimate
from penstock.operator_attributes._schedule.states import StageProgress


def html(
    plan: StagePlan, progress: Mapping[str, StageProgress] | None = None, *, estimate: Estimate | None = None
) -> str:
    """The plan as one HTML page that needs nothing else: picture, stages, edges, call sites and savings.

    Whatever the user named is text in it, never markup.
    """
    progress = progress or {}
    return render(
        "plan.html",
        plan=plan,
        progress=progress,
        estimate=estimate,
        tiles=_tiles(plan, progress, estimate),
        vertices={vertex.name: vertex for vertex in plan.vertices},
        longest=max((one.seconds for one in progress.values()), default=0.0),
        picture=svg(plan, progress, estimate=estimate, linked=True),
    )


def _tiles(plan: StagePlan, progress: Mapping[str, StageProgress], estimate: Estimate | None) -> list[tuple[str, str]]:
    tiles = [("Stages", f"{len(plan.stages):,}"), ("Blocking edges", f"{len(plan.blocking_edges):,}")]
    if progress:
        done = sum(one.state.committed for one in progress.values())
        tiles.append(("Committed", f"{done:,} of {len(plan.stages):,}"))
        tiles.append(("Time in stages", seconds_text(sum(one.seconds for one in progress.values()))))
    if estimate is not None:
        tiles.append(("Slot-seconds saved", f"{estimate.slot_seconds:,.0f}"))
        tiles.append(("State not held", bytes_text(estimate.state_bytes)))
        tiles.append(("Saved per batch", seconds_text(estimate.recomputed_seconds_per_batch)))
    return tiles
