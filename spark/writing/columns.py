"""The columns that the sink accepts, with their types, and what they become for the producer.

`check_columns` runs on the driver before anything is written, `split` in each task for each Arrow batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from raylog.base.errors import InvalidConfig, InvalidRecord, did_you_mean
from raylog.client.producer.arrow_columns import ArrowColumns, header_type

HEADERS = "array<struct<key:string,value:binary>>"
ALLOWED: dict[str, str] = {
    "key": "binary or string",
    "value": "binary or string",
    "headers": HEADERS,
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp, or bigint in milliseconds",
}
IGNORED = ("offset", "timestampType")
"""Columns of the source that the sink ignores, so that a table that was read can be written as it is."""
_CONTENT = (BinaryType, StringType)
_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "key": _CONTENT,
    "value": _CONTENT,
    "topic": (StringType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType, LongType),
}


class Rows(NamedTuple):
    """The rows of one Arrow batch that go to one topic."""

    topic: str
    columns: ArrowColumns
    partitions: Any
    """The partition of each row, an Arrow array of integers; None: the producer chooses."""


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise InvalidConfig unless these columns can be written. `topic`: the option, which wins over the column."""
    for field in schema:
        if field.name in IGNORED:
            continue
        if field.name not in ALLOWED:
            raise InvalidConfig(
                f"{did_you_mean('column of the sink', field.name, ALLOWED)} The columns are {_columns()}; select only "
                "these."
            )
        if not _fits(field.name, field.dataType):
            raise InvalidConfig(
                f"The column {field.name!r} is {field.dataType.simpleString()}; the sink takes {ALLOWED[field.name]}. "
                "Cast it."
            )
    names = schema.fieldNames()
    if "value" not in names:
        raise InvalidConfig(
            f"The sink needs a column 'value' ({ALLOWED['value']}), and there is none among "
            f"{', '.join(map(repr, names)) or 'no columns'}."
        )
    if topic is None and "topic" not in names:
        raise InvalidConfig("The rows have no topic to go to: give the option 'topic', or a column 'topic' (string).")


def _columns() -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in ALLOWED.items())


def _fits(name: str, kind: DataType) -> bool:
    if name != "headers":
        return isinstance(kind, _TYPES[name])
    return (
        isinstance(kind, ArrayType)
        and isinstance(kind.elementType, StructType)
        and [(field.name, type(field.dataType)) for field in kind.elementType]
        == [("key", StringType), ("value", BinaryType)]
    )


def split(batch: pa.RecordBatch, topic: str | None, now_ms: int) -> Iterator[Rows]:
    """The rows of a batch by their topics; a null timestamp becomes `now_ms`. Raises InvalidRecord for a null topic."""
    names = batch.schema.names
    column = {name: batch.column(names.index(name)) for name in ALLOWED if name in names}
    moments = column.get("timestamp")
    headers = column.get("headers")
    columns = ArrowColumns(
        column["value"],
        column.get("key"),
        None if headers is None or headers.null_count == len(headers) else headers.cast(header_type()),
        None if moments is None else _milliseconds(moments, now_ms),
    )
    partitions = column.get("partition")
    if topic is not None:
        yield Rows(topic, columns, partitions)
        return
    topics = column["topic"]
    if topics.null_count:
        raise InvalidRecord(
            f"{topics.null_count} of {len(topics)} rows have no topic (null): fill the column 'topic', or give the "
            "option 'topic'."
        )
    known = pc.unique(topics).to_pylist()
    if len(known) == 1:
        yield Rows(known[0], columns, partitions)
        return
    for name in known:
        rows = pc.indices_nonzero(pc.equal(topics, name))
        yield Rows(name, columns.taken(rows), None if partitions is None else partitions.take(rows))


def _milliseconds(moments: Any, now_ms: int) -> Any:
    if pa.types.is_timestamp(moments.type):
        unit = pa.timestamp("ms", moments.type.tz)
        moments = moments.cast(unit, safe=False).cast(pa.int64())
    filled = moments.fill_null(now_ms)
    if len(filled) and pc.min(filled).as_py() < 0:
        raise InvalidRecord("A timestamp lies before 1970, which a record cannot have: correct the column 'timestamp'.")
    return filled
