"""The service's clock, as its answers' Date headers bound it."""

from email.utils import formatdate

from hypothesis import given
from hypothesis import strategies as st

from penstock.aws import ServiceClock


class Clocks:
    """A host whose monotonic clock and a service whose clock run at one speed."""

    def __init__(self, service: float = 1_000_000.0, wall: float = 5.0) -> None:
        self.mono = 100.0
        self.service = service
        self.wall = wall
        self.clock = ServiceClock(monotonic=lambda: self.mono, wall_clock=lambda: self.wall)

    def pass_time(self, seconds: float) -> None:
        self.mono += seconds
        self.service += seconds

    def call(self, there: float = 0.0, back: float = 0.0) -> None:
        asked_at = self.clock.monotonic()
        self.pass_time(there)
        date = formatdate(int(self.service), usegmt=True)
        self.pass_time(back)
        self.clock.answered(date, asked_at)


def test_before_any_answer_the_host_clock_is_used() -> None:
    clocks = Clocks(wall=42.0)
    assert clocks.clock.earliest() == clocks.clock.latest() == 42.0


def test_an_answer_without_a_date_changes_nothing() -> None:
    clocks = Clocks(wall=42.0)
    clocks.clock.answered(None, 0.0)
    clocks.clock.answered("yesterday", 0.0)
    assert clocks.clock.earliest() == 42.0


@given(
    start=st.floats(1e6, 2e6),
    calls=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3), st.floats(0, 100)), min_size=1, max_size=8),
)
def test_the_bounds_always_hold_the_services_time(start: float, calls: list[tuple[float, float, float]]) -> None:
    clocks = Clocks(service=start)
    for there, back, pause in calls:
        clocks.call(there, back)
        clocks.pass_time(pause)
        assert clocks.clock.earliest() - 1e-6 <= clocks.service <= clocks.clock.latest() + 1e-6


def test_more_answers_narrow_the_bounds() -> None:
    clocks = Clocks(service=1_000_000.0)
    for _ in range(20):
        clocks.call()
        clocks.pass_time(0.95)
    assert clocks.clock.latest() - clocks.clock.earliest() < 0.2


def test_a_step_of_the_service_is_followed_at_its_next_answer() -> None:
    clocks = Clocks()
    clocks.call()
    clocks.service += 30 * 3600
    clocks.call()
    assert clocks.clock.earliest() <= clocks.service <= clocks.clock.latest()
