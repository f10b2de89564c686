"""The sink: makes writers, here and wherever it was shipped to."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from penstock.async_sink._core.state import BufferedRequestState
from penstock.async_sink._core.writer import AsyncSinkWriter

I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes
R = TypeVar("R")


class AsyncSinkBase(ABC, Generic[I, R]):
    """Describes a destination and makes its writers. Holds plain values only, so that it can be pickled."""

    @abstractmethod
    def create_writer(self) -> AsyncSinkWriter[I, R]:
        """A writer with an empty buffer. Enter it with `async with`."""

    @abstractmethod
    def restore_writer(self, states: Iterable[BufferedRequestState[R]]) -> AsyncSinkWriter[I, R]:
        """A writer that begins with what others left behind.

        Raises:
            RecordTooLargeError: an entry is larger than the limit.
        """
