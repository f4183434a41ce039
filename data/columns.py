"""The columns of a dataset: those of `ray.data.read_kafka`, made of what client.ranges builds. Pure; needs pyarrow.

The types are those that Ray declares. Two things differ deliberately from the blocks that its Kafka source makes today:
headers are a map in every block, as declared, and a header key that comes twice keeps both values, in order. An Arrow
map may hold a key twice; `dict(row["headers"])` has the last value, as with Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raylog.base.errors import InvalidConfig, did_you_mean
from raylog.client.ranges.arrow import HEADERS

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", pa.int64()),
        ("timestamp_type", pa.int32()),
        ("headers", pa.map_(pa.string(), pa.binary())),
    ]
)
"""All columns. `timestamp`: milliseconds since 1970. `timestamp_type`: 1 = the producer's time, 2 = the leader's."""
_AS_BUILT = {"timestamp_type": "timestampType"}
_TIMESTAMP_TYPE_OF_RAY = 1
"""Added to Raylog's type: librdkafka, and so Ray, counts from 1; its 0 is for records too old to have a timestamp."""


def chosen(columns: Sequence[str] | None, include_headers: bool) -> tuple[str, ...]:
    """The names of the columns to make, in the order given; `columns` None: all. Raises InvalidConfig."""
    if columns is None:
        return tuple(name for name in SCHEMA.names if include_headers or name != "headers")
    if isinstance(columns, str) or not columns:
        raise InvalidConfig(f"columns must be a list of at least one name of {', '.join(SCHEMA.names)}.")
    for name in columns:
        if name not in SCHEMA.names:
            raise InvalidConfig(did_you_mean("column", str(name), SCHEMA.names))
    if not include_headers and "headers" in columns:
        raise InvalidConfig("columns names headers, which include_headers=False leaves out; change one of the two.")
    return tuple(dict.fromkeys(columns))


def schema_of(names: Sequence[str]) -> Any:
    """The schema of these columns."""
    return pa.schema([SCHEMA.field(name) for name in names])


def built_schema(names: Sequence[str]) -> Any:
    """The schema that client.ranges has to build, so that `table_of` can make these columns of it.

    Without columns it is the offset alone, which counts the rows.
    """
    fields = [
        pa.field(_AS_BUILT.get(name, name), HEADERS if name == "headers" else SCHEMA.field(name).type) for name in names
    ]
    return pa.schema(fields or [SCHEMA.field("offset")])


def table_of(batch: Any, names: Sequence[str]) -> Any:
    """A block with these columns, from a record batch with the schema `built_schema(names)`."""
    return pa.Table.from_arrays([_column(batch, name) for name in names], schema=schema_of(names))


def _column(batch: Any, name: str) -> Any:
    built = batch.column(_AS_BUILT.get(name, name))
    match name:
        case "timestamp_type":
            return pc.add(built, pa.scalar(_TIMESTAMP_TYPE_OF_RAY, pa.int32()))
        case "headers":
            # The same bytes under another type; a record without headers has an empty map.
            pairs = built.values
            return pa.MapArray.from_arrays(built.offsets, pairs.field("key"), pairs.field("value"))
        case _:
            return built
