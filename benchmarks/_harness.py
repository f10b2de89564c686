"""Run two peers in turn, in one process set-up, and say how they compare."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something measured against a peer, round by round."""

    name: str
    peer_name: str
    unit: str
    """The unit of the figures, such as `records/s` or `ms`."""
    ours: list[float]
    peers: list[float]

    @property
    def ratio(self) -> float:
        """Return the median of ours / peer's per round: a slow machine slows both sides of a round."""
        return statistics.median(ours / peer for ours, peer in zip(self.ours, self.peers, strict=True))

    def line(self, benchmark: str) -> str:
        """The line for machines."""
        return f"bench {benchmark} {self.name} ratio={self.ratio:.3g} against={self.peer_name}"


Measure = Callable[[], float]


def interleave(name: str, ours: Measure, peer: Measure, *, peer_name: str, unit: str, rounds: int = ROUNDS) -> Case:
    """Measure A B, B A, A B, … after a warm-up of both, so that neither always comes first."""
    ours()
    peer()
    figures: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        for is_ours in (True, False) if number % 2 == 0 else (False, True):
            figures[is_ours].append(ours() if is_ours else peer())
    return Case(name=name, peer_name=peer_name, unit=unit, ours=figures[True], peers=figures[False])


Benchmark = Callable[[int], Iterable[Case]]
