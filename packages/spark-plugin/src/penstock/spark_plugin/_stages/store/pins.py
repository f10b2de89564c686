"""What a run keeps: the results that its stages were given, by name of the stage."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from penstock.spark_plugin._stages.store.names import is_fingerprint, open_own


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
    """Results that are to take the place of those in `stages` when all of them are committed."""

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """The pins in a file; None where there are none, or they cannot be read."""
        try:
            return cls.parse(file.read_text())
        except (OSError, ValueError):
            return None

    @classmethod
    def parse(cls, text: str | bytes) -> Self | None:
        """The pins of a text; None where it holds none."""
        try:
            document = json.loads(text)
            document.pop("claim", None)
            stages = {name: Pin(**pin) for name, pin in document.pop("stages").items()}
            refreshing = {name: Pin(**pin) for name, pin in document.pop("refreshing", {}).items()}
            if not all(is_fingerprint(pin.fingerprint) for pin in (*stages.values(), *refreshing.values())):
                return None
            return cls(stages=stages, refreshing=refreshing, **document)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def write(self, file: Path) -> None:
        """Put the pins into a file, whole or not at all."""
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f"{file.name}.{os.getpid()}")
        with open_own(temporary) as opened:
            json.dump(asdict(self), opened)
            opened.flush()
            os.fsync(opened.fileno())
        temporary.replace(file)
