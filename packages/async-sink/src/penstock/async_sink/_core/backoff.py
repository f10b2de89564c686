"""How long entries wait before they are sent again."""

from collections.abc import Callable


def full_jitter_seconds(attempts: int, base: float, maximum: float, random: Callable[[], float]) -> float:
    """Random between 0 and min(maximum, base x 2^(attempts - 1)); `attempts` counts submissions so far, from 1.

    Full jitter keeps many writers that were throttled together from coming back together.
    """
    exponent = min(attempts - 1, 62)
    return min(maximum, base * float(1 << exponent)) * random()
