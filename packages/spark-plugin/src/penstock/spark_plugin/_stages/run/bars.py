"""Progress bars of a run's stages, on a terminal."""

from collections.abc import Mapping
from typing import TextIO

from pyspark.core.status import StatusTracker

from penstock.operator_attributes import StagePlan, StageProgress, StageState

_WIDTH = 30


def bar_line(name: str, progress: StageProgress, done: int, total: int) -> str:
    """One stage as a line; `done` and `total` count the tasks of its jobs that run."""
    share = 1.0 if progress.state.committed else done / total if total else 0.0
    filled = round(share * _WIDTH)
    text = (
        f"{name:<24.24} [{'#' * filled}{'.' * (_WIDTH - filled)}] {progress.state.value:<8} {progress.seconds:7.1f} s"
    )
    if progress.rows is not None:
        text += f"  {progress.rows:,} rows"
    elif total:
        text += f"  {done}/{total} tasks"
    return text


class RunBars:
    """Draws a line per stage, over the lines that it drew before."""

    def __init__(self, stream: TextIO, tracker: StatusTracker) -> None:
        self._stream = stream
        self._tracker = tracker
        self._drawn = 0

    def draw(self, plan: StagePlan, progress: Mapping[str, StageProgress]) -> None:
        """Draw all stages as they stand."""
        lines = []
        for stage in plan.stages:
            one = progress[stage.id]
            running = stage.bounded and one.state is StageState.RUNNING
            lines.append(bar_line(stage.name, one, *(self._tasks(stage.name) if running else (0, 0))))
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._stream.write(up + "".join(f"\r\x1b[2K{line}\n" for line in lines))
        self._stream.flush()
        self._drawn = len(lines)

    def _tasks(self, group: str) -> tuple[int, int]:
        """Tasks that are done, and all tasks, of the jobs of a group that run."""
        done = total = 0
        for job_id in self._tracker.getJobIdsForGroup(group):
            job = self._tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job is not None and job.status == "RUNNING" else ():
                stage = self._tracker.getStageInfo(stage_id)
                if stage is not None:
                    done, total = done + stage.numCompletedTasks, total + stage.numTasks
        return done, total
