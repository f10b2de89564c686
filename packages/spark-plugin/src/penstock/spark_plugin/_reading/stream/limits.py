"""What Spark tells a source about a micro-batch: since 4.2 its start and a limit, in 4.1 nothing."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

__all__ = [
    "SPARK_TELLS_LIMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]

SPARK_TELLS_LIMITS = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether `latestOffset` is asked with a start and a limit, and `Trigger.AvailableNow` is announced."""

if TYPE_CHECKING or SPARK_TELLS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """How much of a source a micro-batch reads."""

    @dataclass
    class ReadAllAvailable(ReadLimit):
        """All that is there."""

    @dataclass
    class ReadMaxRows(ReadLimit):
        """So many rows at most."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        """So many bytes at most."""

        max_bytes: int

    class SupportsTriggerAvailableNow(ABC):
        """A source that is told when a run reads what is there and ends; Spark 4.1 tells none."""

        @abstractmethod
        def prepareForTriggerAvailableNow(self) -> None:
            """Remember where the run ends."""
