"""Plans of jobs, as long as they are the same."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from penstock.services.console.errors import NotConfiguredError

if TYPE_CHECKING:
    from penstock.operator_attributes import JobStatus, StagePlan
    from penstock.services.console._sources import StagesSource

_MOST_PLANS = 100


class Plans:
    """Asks for each job's plan once; again when the job has other stages."""

    def __init__(self, source: StagesSource | None) -> None:
        self._source = source
        self._known: OrderedDict[tuple[str, ...], StagePlan] = OrderedDict()

    def has(self, job: JobStatus) -> bool:
        """Whether nobody has to be asked."""
        return _key(job) in self._known

    async def of(self, job: JobStatus) -> StagePlan:
        """The plan of a job.

        Raises:
            NotConfiguredError: there is no stage scheduler.
            OperatorAttributesError: it cannot be asked, or its graph cannot be compiled.
        """
        key = _key(job)
        plan = self._known.get(key)
        if plan is None:
            if self._source is None:
                raise NotConfiguredError("stage scheduler")
            plan = self._known[key] = await self._source.plan(job.job_id)
        self._known.move_to_end(key)
        while len(self._known) > _MOST_PLANS:
            self._known.popitem(last=False)
        return plan


def _key(job: JobStatus) -> tuple[str, ...]:
    return (job.job_id, *(f"{stage.stage_id} {stage.name}" for stage in job.stages))
