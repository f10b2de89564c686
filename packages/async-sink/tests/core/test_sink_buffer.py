from hypothesis import given
from hypothesis import strategies as st

from penstock.async_sink._core.buffer import RequestBuffer
from penstock.async_sink._core.entries import RequestEntryWrapper
from penstock.async_sink._core.runs import Batch, EntryRows, EntryRun, fall_apart


def wrapper(number: int, size: int = 10, not_before: float = 0.0) -> RequestEntryWrapper[str]:
    return RequestEntryWrapper(f"e{number}", size, number, not_before=not_before)


def buffer_of(*sizes: int) -> RequestBuffer[str]:
    buffer = RequestBuffer[str]()
    for number, size in enumerate(sizes):
        buffer.add(wrapper(number, size))
    return buffer


def test_entries_leave_first_in_first_out() -> None:
    """What was added first is taken first."""
    buffer = buffer_of(1, 1, 1)
    assert [each.entry for each in buffer.take(2)] == ["e0", "e1"]
    assert [each.entry for each in buffer.take(1)] == ["e2"]


def test_entries_that_are_put_back_leave_before_newer_ones() -> None:
    """The head has priority: what failed leaves first, in its own order."""
    buffer = buffer_of(1, 1, 1, 1)
    failed = buffer.take(2)
    buffer.put_back(failed)
    assert [each.entry for each in buffer.take(4)] == ["e0", "e1", "e2", "e3"]


def run_of(number: int, *sizes: int) -> EntryRun[str]:
    return EntryRun(EntryRows.of([f"e{number + i}" for i in range(len(sizes))], sizes), number=number)


def test_a_run_counts_as_its_entries() -> None:
    """Number, bytes and order are those of the entries; a batch takes a run's head and leaves the rest."""
    buffer = buffer_of(5, 5)
    buffer.add_run(run_of(2, 1, 2, 3))
    buffer.add(wrapper(5, 7))
    assert (len(buffer), buffer.total_size_in_bytes) == (6, 23)
    assert [each.number for each in buffer] == [0, 1, 2, 3, 4, 5]
    assert buffer.measure(4, 1_000, 0.0) == (4, 13)
    batch = Batch(buffer.take_parts(4, 13), 4, 13, 0.0, has_runs=True)
    assert (len(buffer), buffer.total_size_in_bytes, buffer.head.number) == (2, 10, 4)
    assert batch.entries == ["e0", "e1", "e2", "e3"]
    assert [(each.number, each.attempts) for each in batch.wrappers] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert [(each.number, each.attempts) for each in buffer.take(2)] == [(4, 0), (5, 0)]


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
