"""Time to compile job graphs of 10 to 100,000 operators into stages."""

import functools
import gc
import time
from collections.abc import Iterable
from itertools import pairwise

from benchmarks._harness import Case, interleave
from penstock.operator_attributes import Boundedness, Input, JobGraph, OperatorAttributes, StagePlan, compile

SIZES = (10, 100, 1_000, 10_000, 100_000)
_MOST_MILLIS = 2_000.0
_FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def build(operators: int) -> JobGraph:
    """A graph as jobs are: branches of six operators, chained and keyed, a full-dam one in each, joined two by two."""
    graph = JobGraph(f"{operators} operators")
    graph.add_source("events", boundedness=Boundedness.UNBOUNDED, call_site="job.py:1")
    graph.add_source("table", boundedness=Boundedness.BOUNDED, call_site="job.py:2")
    last: dict[int, str] = {}
    for number in range(operators):
        branch, place = divmod(number, 6)
        name, site = f"operator-{number}", f"job.py:{number + 3}"
        if place == 0:
            # Every other branch continues from the result of the previous one.
            before = last[branch - 1] if branch % 2 else "table"
            graph.add_operator(name, before, call_site=site)
        elif place == 2:
            before = last[branch]
            graph.add_operator(name, before, keyed=True, attributes=_FULL_DAM, call_site=site)
        elif place == 5:
            graph.add_operator(name, Input(last[branch], keyed=True), "events", call_site=site)
        else:
            graph.add_operator(name, last[branch], chained=True, call_site=site)
        if place < 5:
            last[branch] = name
    return graph


def _milliseconds(graph: JobGraph, times: int) -> float:
    # Processor time: compiling only computes, and the machine may be busy.
    began = time.process_time()
    for _ in range(times):
        plan: StagePlan = compile(graph)
    assert plan.stages
    return 1_000 * (time.process_time() - began) / times


def run(rounds: int) -> Iterable[Case]:
    """Each size against the one a tenth of it: ten is linear."""
    graphs = {size: build(size) for size in SIZES}
    # Without this, larger sizes pay for scanning all modules for garbage.
    gc.collect()
    gc.freeze()
    for small, large in pairwise(SIZES):
        case = interleave(
            f"{large}-over-{small}",
            functools.partial(_milliseconds, graphs[large], max(1, 2_000 // large)),
            functools.partial(_milliseconds, graphs[small], max(1, 2_000 // small)),
            peer_name=f"{small}-operators",
            unit="ms",
            rounds=rounds,
        )
        yield case
    yield Case(
        name=f"{SIZES[-1]}-operators", peer_name="2-seconds", unit="ms", ours=case.ours, peers=[_MOST_MILLIS] * rounds
    )
