from hypothesis import given
from hypothesis import strategies as st

from penstock.async_sink._core.buffer import RequestBuffer
from penstock.async_sink._core.entries import RequestEntryWrapper
from penstock.async_sink._core.runs import EntryRows, EntryRun, fall_apart


def wrapper(number: int, size: int = 10, not_before: float = 0.0) -> RequestEntryWrapper[str]:
    return RequestEntryWrapper(f"e{number}", size, number, not_before=not_before)


def buffer_of(*sizes: int) -> RequestBuffer[str]:
    buffer = RequestBuffer[str]()
    for number, size in enumerate(sizes):
        buffer.add(wrapper(number, size))
    return buffer


def run_of(number: int, *sizes: int) -> EntryRun[str]:
    return EntryRun(EntryRows.of([f"e{number + i}" for i in range(len(sizes))], sizes), number=number)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1), st.integers(1, 8), st.integers(9, 30))
def test_batches_of_runs_are_those_of_their_entries(runs: list[list[int]], most: int, most_bytes: int) -> None:
    """However entries stand together, every batch is cut at the same place."""
    in_runs, alone = RequestBuffer[str](), RequestBuffer[str]()
    number = 0
    for sizes in runs:
        in_runs.add_run(run_of(number, *sizes))
        for size in sizes:
            alone.add(wrapper(number, size))
            number += 1
    while alone:
        extent = alone.measure(most, most_bytes, 0.0)
        assert in_runs.measure(most, most_bytes, 0.0) == extent
        batches = [fall_apart(buffer.take_parts(*extent)) for buffer in (in_runs, alone)]
        left, right = ([(each.entry, each.number) for each in batch] for batch in batches)
        assert left == right
        assert (len(in_runs), in_runs.total_size_in_bytes) == (len(alone), alone.total_size_in_bytes)


@given(st.integers(1, 40), st.data())
def test_whatever_order_requests_fail_in_entries_keep_the_order_of_writing(count: int, data: st.DataObject) -> None:
    """Requests that come back in any order leave the buffer sorted by the order of writing."""
    buffer = buffer_of(*[1] * count)
    in_flight = []
    while len(buffer) and data.draw(st.booleans()):
        in_flight.append(buffer.take(data.draw(st.integers(1, len(buffer)))))
    for batch in data.draw(st.permutations(in_flight)):
        kept = [each for each in batch if data.draw(st.booleans())]
        buffer.put_back(kept)
    numbers = [each.number for each in buffer]
    assert numbers == sorted(numbers)
    assert buffer.total_size_in_bytes == len(buffer)


def test_an_entry_that_backs_off_ends_the_batch() -> None:
    """Entries behind one that is not ready do not overtake it."""
    buffer = buffer_of(1)
    buffer.add(wrapper(1, 1, not_before=5.0))
    buffer.add(wrapper(2, 1))
    assert buffer.measure(10, 100, now=4.9)[0] == 1
    assert buffer.measure(10, 100, now=5.0)[0] == 3
