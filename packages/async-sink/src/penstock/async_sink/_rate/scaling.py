"""How much a limit grows and shrinks (FLIP-242)."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from penstock.async_sink.errors import SinkOptionError


class ScalingStrategy(Protocol):
    """How much a limit grows and shrinks."""

    def scale_up(self, current: int) -> int:
        """The limit after a success."""

    def scale_down(self, current: int) -> int:
        """The limit after a throttle."""


@runtime_checkable
class ShareScalingStrategy(ScalingStrategy, Protocol):
    """A scaling strategy that goes by how much of a request was refused."""

    def scale_down_by(self, current: int, failed_share: float) -> int:
        """The limit after that share of a request's entries, more than 0 and at most 1, was refused."""


@dataclass(frozen=True, kw_only=True)
class AIMDScalingStrategy:
    """Additive increase, multiplicative decrease.

    Up: min(current + increase_rate, rate_threshold). Down: max(1, round(current x decrease_factor)).

    Raises:
        SinkOptionError: an argument is out of range.
    """

    increase_rate: int = 10
    """Added by a success; more than 0."""
    decrease_factor: float = 0.5
    """Multiplied by a throttle; more than 0 and less than 1."""
    rate_threshold: int
    """The limit never grows past it; at least increase_rate."""

    def __post_init__(self) -> None:
        if self.increase_rate <= 0:
            raise SinkOptionError("increase_rate", f"{self.increase_rate} must be more than 0")
        if not 0.0 < self.decrease_factor < 1.0:
            raise SinkOptionError("decrease_factor", f"{self.decrease_factor} must be more than 0 and less than 1")
        if self.rate_threshold < self.increase_rate:
            raise SinkOptionError(
                "rate_threshold", f"{self.rate_threshold} must be at least increase_rate, {self.increase_rate}"
            )

    def scale_up(self, current: int) -> int:
        """Add the increase, up to the threshold."""
        return min(current + self.increase_rate, self.rate_threshold)

    def scale_down(self, current: int) -> int:
        """Multiply by the factor, rounded half up, down to 1."""
        return max(1, int(current * self.decrease_factor + 0.5))


@dataclass(frozen=True, kw_only=True)
class ProportionalScalingStrategy:
    """Additive increase, decrease by the share that failed.

    Up: min(current + increase_rate, rate_threshold). Down, when a share f of a request's entries was refused:
    max(floor, round(current x (1 - f))). A destination that refuses one entry of 500 is a little too full, not twice.

    Raises:
        SinkOptionError: an argument is out of range.
    """

    increase_rate: int = 10
    """Added by a success; more than 0."""
    rate_threshold: int
    """The limit never grows past it; at least increase_rate and floor."""
    floor: int = 1
    """The limit never shrinks below it; at least 1."""

    def __post_init__(self) -> None:
        if self.increase_rate <= 0:
            raise SinkOptionError("increase_rate", f"{self.increase_rate} must be more than 0")
        if self.floor <= 0:
            raise SinkOptionError("floor", f"{self.floor} must be more than 0")
        if self.rate_threshold < max(self.increase_rate, self.floor):
            raise SinkOptionError("rate_threshold", f"{self.rate_threshold} must be at least increase_rate and floor")

    def scale_up(self, current: int) -> int:
        """Add the increase, up to the threshold."""
        return min(current + self.increase_rate, self.rate_threshold)

    def scale_down(self, current: int) -> int:
        """As if all had failed."""
        return self.scale_down_by(current, 1.0)

    def scale_down_by(self, current: int, failed_share: float) -> int:
        """Shrink by the share, rounded half up, down to the floor."""
        return max(self.floor, int(current * (1.0 - failed_share) + 0.5))


@dataclass(frozen=True)
class NoOpScalingStrategy:
    """A limit that stays as it is."""

    def scale_up(self, current: int) -> int:
        """The same."""
        return current

    def scale_down(self, current: int) -> int:
        """The same."""
        return current
