"""What a run needs of a store, wherever that lies."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self

from pyspark.sql import DataFrame, SparkSession

from penstock.spark_plugin._stages.store.pins import RunPins
from penstock.spark_plugin._stages.store.store import CommittedStage
from penstock.spark_plugin.errors import StoreLostError


class StageResult(Protocol):
    """Where one stage with one fingerprint leaves its result."""

    @property
    def shows_size(self) -> bool:
        """Whether Spark sees how large the rows are that it reads from there."""

    @property
    def location(self) -> str:
        """For people, and for other drivers."""

    def committed(self) -> CommittedStage | None:
        """The result, if it was committed."""

    def age_seconds(self, now: float) -> float:
        """Since the result was committed, at `now` as seconds since the epoch; 0 if it is not."""

    def begin(self, stage: str) -> None:
        """Make room for a stage that is computed from now on."""

    def write(self, vertex: str, frame: DataFrame) -> None:
        """Write the rows of a vertex; they are nobody's until `commit`."""

    def output_name(self, vertex: str) -> str:
        """Of the folder of a vertex, relative to the result's own."""

    def measure(self, vertices: Sequence[str]) -> tuple[int, int]:
        """Rows and bytes that were written."""

    def commit(self, stage: CommittedStage) -> CommittedStage:
        """Declare the data complete, at once and whole, or not at all; what is committed by then."""

    def read(self, spark: SparkSession, vertex: str) -> DataFrame:
        """The committed rows of a vertex."""

    def damage(self, result: CommittedStage) -> str:
        """What is wrong with the data of a result, in words; empty if nothing is. Looks at no rows."""


class PipelineStore(Protocol):
    """The store of one pipeline, which one driver holds while it is entered."""

    @property
    def name(self) -> str:
        """Its path or URL."""

    def __enter__(self) -> Self:
        """Raises: StoreInUseError: another driver holds it."""

    def __exit__(self, *_: Any) -> None:
        """See `release`."""

    def release(self) -> None:
        """Let another driver have the store."""

    def when_lost(self, call: Callable[[StoreLostError], None]) -> None:
        """What is to be called, on a thread of its own, if another driver has it all the same."""

    def identity(self) -> str:
        """What the store is known by to all drivers."""

    def results_identity(self) -> str:
        """What its results are known by."""

    def stage(self, name: str, fingerprint: str) -> StageResult:
        """The result of a stage with a fingerprint. Raises: StoreUnusableError: the fingerprint is invalid."""

    def computing(
        self, name: str, fingerprint: str, *, stopped: threading.Event | None = None
    ) -> AbstractContextManager[None]:
        """Hold the right to compute a stage's result; waits for another driver that computes the same one.

        Raises:
            RuntimeError: `stopped` was set meanwhile.
        """

    def pins(self) -> RunPins | None:
        """What the last run on this store uses."""

    def pin(self, pins: RunPins) -> None:
        """Declare what the present run uses."""

    def checkpoint_url(self, sink: str) -> str:
        """Where the checkpoint of a live stage's query lies, if its user does not say."""

    def has_begun(self, sink: str) -> bool | None:
        """Whether a query has logged offsets in its checkpoint in the store; None where Spark is to be asked."""

    def mend_checkpoint(self, sink: str) -> None:
        """Remove what a driver left that ended while it wrote the offsets of a query's first micro-batch."""

    def adopted(self, sink: str) -> str | None:
        """The location outside of the store that a query has its checkpoint in; None if it has none there."""

    def adopt(self, sink: str, location: str) -> None:
        """Remember where a query has its checkpoint, from before it starts."""

    def forget(self) -> None:
        """Remove the checkpoints, seams, and all results but those that another store pins."""

    def clean_up(self) -> int:
        """Remove the results that no run pins and nobody computes; how many bytes that were."""

    def remove(self, result: Any, condition: Callable[[Any], object]) -> int:
        """Remove a result, unless somebody computes it; how many bytes that were.

        The condition is asked when nobody can compute it any more: what was found before may not hold by then.
        """
