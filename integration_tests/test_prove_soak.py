"""How a soak judges what it sampled."""

from itertools import pairwise
from random import Random

import pytest

from tools.prove.soak import Line, fit


def line(*levels: float, noise: float = 1.0) -> Line:
    """Through an hour of samples that go from level to level, in equal times."""
    random, parts = Random(7), len(levels) - 1
    points = [
        (number / 720, before + (after - before) * (number % (720 // parts)) / (720 // parts) + random.gauss(0, noise))
        for number, (before, after) in enumerate(pair for pair in pairwise(levels) for _ in range(720 // parts))
    ]
    return fit("MiB resident", points)


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        ((100, 100), "flat"),
        ((100, 103), "flat"),
        ((100, 120), "GROWS"),
        ((100, 100, 120, 120), "GROWS"),
        ((100, 108, 108, 116, 116, 124), "GROWS"),
        ((120, 100), "flat"),
    ],
)
def test_a_soak_tells_what_grows(levels: tuple[float, ...], verdict: str) -> None:
    """By more than a twentieth an hour, however unevenly."""
    assert str(line(*levels)).endswith(verdict)


@pytest.mark.parametrize("at", [100, 360, 600])
def test_a_step_is_not_growth(at: int) -> None:
    """What a service holds for a caller that came once."""
    random = Random(7)
    found = fit("MiB", [(number / 720, 80 + 21 * (number > at) + random.gauss(0, 1)) for number in range(720)])
    assert str(found).endswith("a step")
