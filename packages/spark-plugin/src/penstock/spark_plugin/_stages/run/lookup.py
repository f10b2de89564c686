"""Finds committed results, and those that are not there any more."""

import logging
from collections.abc import Callable

from penstock.operator_attributes import Stage
from penstock.spark_plugin._stages.run.builder import StageBuilder
from penstock.spark_plugin._stages.store.api import StageResult
from penstock.spark_plugin._stages.store.store import CommittedStage

_log = logging.getLogger(__name__)


class StageLookup:
    """Looks for the results of a run's bounded stages."""

    def __init__(self, builder: StageBuilder, pin: Callable[[], None]) -> None:
        """Begin to look; `pin` is called before a result is looked at, so that no other driver cleans it up."""
        self._builder = builder
        self._pin = pin

    def committed(self, stage: Stage) -> tuple[CommittedStage | None, str]:
        """The result that the stage has by its fingerprint, if all of it is there; and what was found wrong with it.

        A result that is damaged is removed: the stage is computed from what its sources hold by then.
        """
        if not stage.bounded:
            return None, ""
        self._builder.fingerprint(stage)
        self._pin()
        wrong = self.lost(stage)
        if wrong:
            self._builder.fingerprint(stage)
            self._pin()
            return None, wrong
        return self._builder.folder(stage).committed(), ""

    def lost(self, stage: Stage) -> str:
        """What is wrong with a result that was committed, which is removed then; empty if nothing is."""
        folder = self._builder.folder(stage)
        wrong = _wrong(folder)
        if wrong:
            _log.warning("the committed result of stage %s is lost: %s", stage.name, wrong)
            # Another driver that shares it may have found that out before, and compute it by now.
            self._builder.store.remove(folder, _wrong)
            self._builder.forget(stage)
        return wrong

    def lost_input(self, stage: Stage) -> str:
        """As `lost`, for a result that a stage was committed for in this run: it must be there."""
        if self._builder.folder(stage).committed() is None:
            self._builder.forget(stage)
            return "its committed result is gone"
        return self.lost(stage)


def _wrong(folder: StageResult) -> str:
    result = folder.committed()
    return folder.damage(result) if result is not None else ""
