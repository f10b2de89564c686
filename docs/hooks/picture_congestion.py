"""A plot of two sinks on a stream that others use for a while: the code of the sink, in simulated time."""

import asyncio
import itertools
import random
from dataclasses import dataclass

from picture_canvas import Canvas

from benchmarks.writing.simulated_stream import RECORDS_PER_SECOND, SimulatedStream, Strategy
from penstock.async_sink import aimd_strategy, kinesis_strategy
from penstock.async_sink.testing import FakeClock

SHARDS = 2
SECONDS = 30
BUSY = (10, 20)
BUSY_SHARE = 0.3
_WINDOW_SECONDS = 0.5
_LEFT, _RIGHT, _HEIGHT = 70.0, 830.0, 150.0


@dataclass(frozen=True)
class Course:
    """What happened, a number per window: records per second that were accepted, and refused."""

    accepted: list[float]
    throttled: list[float]


def simulate(strategy: Strategy) -> Course:
    """A writer that always has more to write, on a stream of which others take most for ten seconds."""
    before = random.getstate()
    # The waits before records are sent again are random: with the same seed the picture is the same.
    random.seed(1)
    try:
        return asyncio.run(_simulate(strategy))
    finally:
        random.setstate(before)


async def _simulate(strategy: Strategy) -> Course:
    stream = SimulatedStream(FakeClock(), SHARDS)
    accepted, throttled = [], []
    async with stream.writer(strategy) as writer:

        async def write() -> None:
            for number in itertools.count():
                await writer.write(stream.entry_for(number % stream.shards, number))

        writing = asyncio.create_task(write(), name="write")
        before = (0, 0)
        for window in range(int(SECONDS / _WINDOW_SECONDS)):
            stream.share = BUSY_SHARE if BUSY[0] <= window * _WINDOW_SECONDS < BUSY[1] else 1.0
            await stream.spend(_WINDOW_SECONDS)
            now = (sum(stream.accepted.values()), stream.throttled)
            accepted.append((now[0] - before[0]) / _WINDOW_SECONDS)
            throttled.append((now[1] - before[1]) / _WINDOW_SECONDS)
            before = now
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        stream.share = 1.0
        await writer.close()
    return Course(accepted, throttled)


def plot() -> str:
    """Both courses below each other, with the limit."""
    limit = SHARDS * RECORDS_PER_SECOND
    top = 2 * limit
    picture = Canvas(
        "congestion",
        "Records per second over 30 simulated seconds. Between 10 s and 20 s the stream takes a third of its limit. "
        "The paced sink follows the limit with hardly any refused record; the AIMD sink has many refused throughout.",
        860,
        460,
    )
    for number, (name, strategy) in enumerate(
        (("paced per shard (the default for Kinesis)", kinesis_strategy), ("AIMD +10, x0.5", aimd_strategy))
    ):
        course = simulate(strategy)
        base = 190.0 + number * 215
        total, refused = sum(course.accepted), sum(course.throttled)
        picture.text(_LEFT, base - _HEIGHT - 14, name, kind="strong", anchor="start")
        share = f"refused: {100 * refused / (total + refused):.1f} % of what was sent"
        picture.text(_RIGHT, base - _HEIGHT - 14, share, kind="soft", anchor="end")
        for value in (0, limit, top):
            y = base - _HEIGHT * value / top
            picture.line([(_LEFT, y), (_RIGHT, y)], kind="grid")
            picture.text(_LEFT - 8, y + 4, f"{value:,.0f}", kind="soft", anchor="end")
        picture.line(
            _steps([(0, limit), (BUSY[0], BUSY_SHARE * limit), (BUSY[1], limit)], base, top), kind="flow dashed"
        )
        picture.line(_points(course.throttled, base, top), kind="dam")
        picture.line(_points(course.accepted, base, top), kind="accent")
        for second in range(0, SECONDS + 1, 5):
            picture.text(_x(second), base + 17, f"{second} s", kind="soft")
    legend = 442
    for x, kind, words in (
        (90, "accent", "accepted"),
        (250, "dam", "refused"),
        (400, "flow dashed", "what the stream takes"),
    ):
        picture.line([(x, legend), (x + 30, legend)], kind=kind)
        picture.text(x + 38, legend + 4, words, anchor="start")
    return picture.svg()


def _x(second: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * second / SECONDS


def _points(values: list[float], base: float, top: float) -> list[tuple[float, float]]:
    return [
        (_x((number + 0.5) * _WINDOW_SECONDS), base - _HEIGHT * min(value, top) / top)
        for number, value in enumerate(values)
    ]


def _steps(levels: list[tuple[float, float]], base: float, top: float) -> list[tuple[float, float]]:
    ends = [*(start for start, _ in levels[1:]), float(SECONDS)]
    return [
        (_x(second), base - _HEIGHT * level / top)
        for (start, level), end in zip(levels, ends, strict=True)
        for second in (start, end)
    ]
