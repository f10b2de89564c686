"""The columns in which a shard keeps its records."""

from __future__ import annotations

from penstock.emulator._state.records import RecordLog


def filled(count: int, *, skip: int = 2) -> RecordLog:
    log = RecordLog()
    for number in range(count):
        log.append(counter=number * skip, arrival_ms=1000 + number, size_bytes=10, encoded=b"%d" % number)
    return log


def test_a_position_between_two_records_means_the_later_one() -> None:
    """Counters may skip some, and a reader that asks for a missing one gets the next."""
    log = filled(5)
    assert [log.index_of(counter) for counter in (0, 1, 2, 8, 9)] == [0, 1, 1, 4, 5]
    assert [log.index_at(millis) for millis in (0, 1001, 9999)] == [0, 1, 5]


def test_a_slice_stays_as_it_was() -> None:
    """What was read does not change by what is written or trimmed later."""
    log = filled(5)
    taken = log.slice(1, 3)
    log.trim_before(5000)
    assert [record.encoded for record in taken] == [b"1", b"2"]
    assert (taken.first_counter, taken.last_counter, taken.size_bytes) == (2, 4, 20)


def test_reading_keeps_to_bytes_but_gives_one_record_at_least() -> None:
    """A record above the bound is given alone."""
    log = filled(5)
    assert log.fitting(1, max_records=10, max_bytes=25).encoded == [b"1", b"2"]
    assert log.fitting(1, max_records=1, max_bytes=25).encoded == [b"1"]
    assert log.fitting(1, max_records=10, max_bytes=5).encoded == [b"1"]
    assert log.fitting(5, max_records=10, max_bytes=5).encoded == []


def test_trimming_forgets_the_old_and_keeps_the_rest() -> None:
    """Indexes start at the oldest record that is left, however many are gone, and appending still works."""
    log = filled(5000)
    for before in (1001, 1004, 1900, 4000, 5990):
        log.trim_before(before)
        left = before - 1000
        assert len(log) == 5000 - left
        assert log.index_of(0) == 0
        assert log.counter(0) == left * 2
        assert log.slice(0, 1)[0].encoded == b"%d" % left
    log.append(counter=10_000, arrival_ms=6000, size_bytes=10, encoded=b"new")
    assert log.last_counter == 10_000
    log.trim_before(7000)
    assert (len(log), log.last_counter, log.index_of(0)) == (0, -1, 0)
