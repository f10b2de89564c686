"""Times that users write: which texts are times, and which are refused instead of being taken for another time."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.efo_consumer import EfoConsumerConfigError, InitialPosition, parse_time

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
DATES = ("20261129", "202611291200", "20261129120000", "2026112912", "261129", "202611", "2026", "2026333")


def read(text: str) -> datetime:
    return parse_time(text, zone=UTC, now=NOW.timestamp)


@pytest.mark.parametrize("text", [*DATES, "0", "5", "-1764417600", "1384387199", "17644176000", "1e9", "nan", "٢٠٢٦"])
def test_number_that_no_record_can_have_as_its_time_is_refused(text: str) -> None:
    """A date without hyphens, a part of a date, and a time before Kinesis existed or far in the future."""
    with pytest.raises(ValueError, match="2026-01-31T12:00:00Z"):
        read(text)
    with pytest.raises(EfoConsumerConfigError) as caught:
        InitialPosition.parse("AT_TIMESTAMP", text)
    assert caught.value.option == "initialPosition"


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-29", datetime(2026, 11, 29, tzinfo=UTC)),
        ("2026-11-29T12:00:00Z", datetime(2026, 11, 29, 12, tzinfo=UTC)),
        ("20261129T120000Z", datetime(2026, 11, 29, 12, tzinfo=UTC)),
        ("2026-11-29 12:00:00+02:00", datetime(2026, 11, 29, 12, tzinfo=timezone(timedelta(hours=2)))),
        ("1700000000", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("1700000000.25", datetime(2023, 11, 14, 22, 13, 20, 250000, tzinfo=UTC)),
        ("1700000000123", datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)),
        (" 1384387200 ", datetime(2013, 11, 14, tzinfo=UTC)),
    ],
)
def test_times_are_read_as_they_are_written(text: str, time: datetime) -> None:
    """ISO 8601 in both of its formats, and seconds or milliseconds since 1970."""
    assert read(text) == time


def test_time_before_1970_is_refused() -> None:
    """Kinesis takes no such time."""
    with pytest.raises(ValueError, match="1970"):
        read("1969-12-31T23:59:59Z")


def test_time_without_an_offset_needs_a_zone() -> None:
    """Where the caller has no zone for it, the time is refused."""
    for text in ("2026-11-29", "2026-11-29T12:00:00"):
        with pytest.raises(ValueError, match="offset"):
            parse_time(text)


@given(st.datetimes(datetime(2013, 11, 14), datetime(2027, 11, 1)))
def test_seconds_and_milliseconds_are_never_confused(time: datetime) -> None:
    """Every time that a record can have is read from both, and from its text."""
    time = time.replace(tzinfo=UTC, microsecond=time.microsecond // 1000 * 1000)
    millis = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    written = (f"{millis}", f"{millis // 1000}.{millis % 1000:03}", time.isoformat())
    assert [read(text) for text in written] == [time] * 3
