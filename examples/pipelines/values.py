"""The JSON values of the topics as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FLIGHT: Final = (
    "row bigint, carrier string, tailnum string, origin string, dest string, distance bigint, "
    "dep_delay bigint, arr_delay bigint"
)
WEATHER: Final = "origin string, wind_speed double, visib double, precip double"
PLANE: Final = "tailnum string, manufacturer string, model string, seats bigint"


def parsed(records: DataFrame, row: str, *also: str) -> DataFrame:
    """Return the record's timestamp, the columns named in ``also``, and those of its JSON value."""
    from pyspark.sql import functions as f

    value = f.from_json(f.col("value").cast("string"), row).alias("value")
    return records.select("timestamp", *also, value).select("timestamp", *also, "value.*")
