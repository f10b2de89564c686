"""What an operator declares to the planner (FLIP-331)."""

import logging
from dataclasses import dataclass
from typing import Self

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAttributes:
    """What an operator declares to the planner (FLIP-331, `OperatorAttributes`)."""

    output_only_after_end_of_stream: bool = False
    """True if and only if the operator emits records only after all of its inputs have ended (it is full-dam).

    Its results, and those of the operators chained with it, then cross blocking edges, and they run in batch
    mode.
    """
    internal_sorter_supported: bool = False
    """True if the operator sorts its keyed input itself, so that batch mode need not sort it."""


class OperatorAttributesBuilder:
    """Builds `OperatorAttributes`; both are false by default (FLIP-331, `OperatorAttributesBuilder`)."""

    def __init__(self) -> None:
        self._output_only_after_end_of_stream: bool | None = None
        self._internal_sorter_supported: bool | None = None

    def set_output_only_after_end_of_stream(self, value: bool) -> Self:
        """Set whether the operator emits records only after all of its inputs have ended."""
        self._output_only_after_end_of_stream = value
        return self

    def set_internal_sorter_supported(self, value: bool) -> Self:
        """Set whether the operator sorts its keyed input itself."""
        self._internal_sorter_supported = value
        return self

    def build(self) -> OperatorAttributes:
        """The attributes. One that was not set explicitly is false, and logged at DEBUG."""
        return OperatorAttributes(
            output_only_after_end_of_stream=_explicit(
                "output_only_after_end_of_stream", self._output_only_after_end_of_stream
            ),
            internal_sorter_supported=_explicit("internal_sorter_supported", self._internal_sorter_supported),
        )


def _explicit(name: str, value: bool | None) -> bool:
    if value is None:
        _log.debug("operator attribute %s is not set explicitly: false is used", name)
        return False
    return value
