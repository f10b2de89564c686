import json

import pandas as pd
import pytest

from penstock.demo._data import DELAYED_MINUTES, expected_delays, flight_records, read_flights
from penstock.demo._report import compare


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return read_flights(3_000)


def test_all_flights_of_the_year_are_there() -> None:
    """The data set is the whole of 2013."""
    assert len(read_flights()) == 336_776


def test_a_record_holds_its_flight_and_a_cancelled_one_has_no_delay(flights: pd.DataFrame) -> None:
    """Missing numbers become null in JSON, not NaN."""
    records = [json.loads(record.data) for record in flight_records(flights)]
    cancelled = [record for record in records if record["dep_delay"] is None]
    assert len(cancelled) == flights["dep_delay"].isna().sum() > 0
    assert records[0]["id"] == 0


def delays(flights: pd.DataFrame) -> tuple[pd.DataFrame, list[bytes]]:
    table = expected_delays(flights)
    plain = table.astype(object).where(table.notna(), None)
    return table, [
        json.dumps(
            {"id": number} | {name: value for name, value in row.items() if value is not None}, default=float
        ).encode()
        for number, row in plain.to_dict(orient="index").items()
    ]


def test_what_is_expected_is_only_the_delayed_flights_with_weather(flights: pd.DataFrame) -> None:
    """The comparison has the delayed departures, and a day's mean temperature where there was weather."""
    table, _ = delays(flights)
    assert set(table.index) == set(flights.loc[flights["dep_delay"] >= DELAYED_MINUTES, "id"])
    assert table["temp"].notna().any()


def test_missing_doubled_unknown_and_changed_rows_are_told_apart(flights: pd.DataFrame) -> None:
    """Each kind of difference has a count of its own, and duplicates alone are allowed."""
    table, records = delays(flights)
    assert compare(iter([*records, records[0]]), table).duplicated == 1
    assert compare(iter([*records, records[0]]), table).is_complete
    assert compare(iter(records[1:]), table).missing == 1
    assert compare(iter([*records, b'{"id": -1}']), table).unexpected == 1
    changed = json.loads(records[5]) | {"temp": 451.0}
    found = compare(iter([*records[:5], json.dumps(changed).encode(), *records[6:]]), table)
    assert (found.wrong, found.is_complete) == (1, False)
