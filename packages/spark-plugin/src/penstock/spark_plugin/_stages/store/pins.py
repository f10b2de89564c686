"""What a run keeps: the results that its stages were given, by name of the stage."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from penstock.spark_plugin._stages.store.names import is_fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The result of a stage that a run uses."""

    fingerprint: str
    code: str
    """Fingerprint of the stage's functions alone, without what its sources read."""
    inputs: Mapping[str, str]
    """Fingerprints of the results that it read, by stage."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """What its sources held, as fingerprints by name, the same for all stages that were computed in one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPins:
    """The results that the last run on a store uses.

    A run is open until all of its stages have ended; one with a live stage stays open, also while no driver runs it.
    The next driver goes on in an open run: with the results that it began with, whatever its sources hold by now.
    """

    pipeline: str
    store: str
    """The store of the run; results may be shared between stores."""
    stages: Mapping[str, Pin] = field(default_factory=dict)
    ended: bool = False
    refreshing: Mapping[str, Pin] = field(default_factory=dict)
    """Results of a refresh that runs; no other driver may remove them."""

    @classmethod
    def parse(cls, text: str | bytes) -> Self | None:
        """The pins of a text; None where it holds none."""
        try:
            document = json.loads(text)
            stages, refreshing = (
                {name: Pin(**pin) for name, pin in document.get(kind, {}).items()} for kind in ("stages", "refreshing")
            )
            if not all(is_fingerprint(pin.fingerprint) for pin in (*stages.values(), *refreshing.values())):
                return None
            return cls(
                pipeline=document["pipeline"],
                store=document["store"],
                stages=stages,
                ended=document["ended"],
                refreshing=refreshing,
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
