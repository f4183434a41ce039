"""Columns of a block as keys, values, headers and times of records. Used by datasink.py. Pure; needs pyarrow.

Columns of bytes, text or integers are converted as whole buffers: no Python object is made for a record. JSON, and the
text of other types, are made row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from raylog.base.errors import InvalidConfig, InvalidRecord, did_you_mean
from raylog.client.producer.arrow_columns import ArrowColumns, header_type

SERIALIZERS = ("json", "string", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Which column becomes which part of a record; None: no column, and for ``value`` the whole row."""

    value: str | None = None
    key: str | None = None
    headers: str | None = None
    timestamp: str | None = None
    partition: str | None = None
    key_serializer: str = "string"
    value_serializer: str | None = None
    """None: `json` for the whole row and for columns that are neither bytes nor text."""

    def named(self) -> dict[str, str]:
        """The named columns, by the argument of `write` that names each."""
        given = {
            "value_field": self.value,
            "key_field": self.key,
            "headers_field": self.headers,
            "timestamp_field": self.timestamp,
            "partition_field": self.partition,
        }
        return {argument: column for argument, column in given.items() if column is not None}


class Records(NamedTuple):
    """The records of a block, ready to send."""

    columns: ArrowColumns
    partitions: Any
    """The partition of each record, an Arrow array of integers; None: the producer chooses."""


def check_schema(fields: Fields, schema: Any) -> None:
    """Check the schema of a dataset before any record. Raises InvalidConfig as `check_columns`, and InvalidRecord."""
    check_columns(fields, schema.names)
    if isinstance(schema, pa.Schema):  # of blocks of pandas, Ray knows NumPy's types only
        records_of(schema.empty_table(), fields, 0)


def check_columns(fields: Fields, names: Sequence[str]) -> None:
    """Raise InvalidConfig for a column that does not exist; the message has the argument and the nearest name."""
    for argument, column in fields.named().items():
        if column not in names:
            raise InvalidConfig(f"{argument}: {did_you_mean('column', column, names)}")


def records_of(table: Any, fields: Fields, now_ms: int) -> Records:
    """The records of a table. Raises InvalidConfig for a missing column, InvalidRecord for a wrong type or value."""
    check_columns(fields, table.column_names)
    column = {argument: _whole(table.column(name)) for argument, name in fields.named().items()}
    return Records(
        ArrowColumns(
            _values(table, column.get("value_field"), fields),
            None
            if fields.key is None
            else _serialized("key_field", fields.key, column["key_field"], fields.key_serializer),
            None if fields.headers is None else _headers(fields.headers, column["headers_field"]),
            None if fields.timestamp is None else _milliseconds(fields.timestamp, column["timestamp_field"], now_ms),
        ),
        None if fields.partition is None else _partitions(fields.partition, column["partition_field"]),
    )


def _whole(column: Any) -> Any:
    """A column as one array, without chunks and dictionary encoding."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else pa.concat_arrays(array.chunks)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _values(table: Any, column: Any, fields: Fields) -> Any:
    if fields.value is not None:
        chosen = fields.value_serializer or ("bytes" if _is_content(column.type) else "json")
        return _serialized("value_field", fields.value, column, chosen)
    if fields.value_serializer not in (None, "json"):
        raise InvalidConfig(
            f"value_serializer={fields.value_serializer!r} needs value_field: a whole row can only be written as JSON."
        )
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if _is_binary(kind):
            raise InvalidRecord(
                f"The column {name!r} holds bytes, which JSON cannot: give value_field={name!r} to write it as it "
                "is, or leave it out with drop_columns."
            )
    return _encoded("The row", table.to_pylist())


def _serialized(argument: str, name: str, column: Any, serializer: str) -> Any:
    """One column as bytes; null stays null."""
    kind = column.type
    if pa.types.is_null(kind):  # a block in which no row has a value
        return pa.nulls(len(column), pa.binary())
    if serializer == "json":
        if _is_binary(kind):
            raise InvalidRecord(f"{argument}: the column {name!r} holds bytes, which JSON cannot; give 'bytes'.")
        return _encoded(f"{argument}: the column {name!r}", column.to_pylist(), keeps_null=True)
    if _is_content(kind):
        return column.cast(pa.binary())
    if serializer == "bytes":
        raise InvalidRecord(
            f"{argument}: the column {name!r} is {kind}, and 'bytes' takes binary or string. Give 'string' or 'json'."
        )
    if pa.types.is_integer(kind):
        return column.cast(pa.string()).cast(pa.binary())
    return pa.array([None if item is None else str(item).encode() for item in column.to_pylist()], pa.binary())


def _encoded(what: str, items: Sequence[Any], *, keeps_null: bool = False) -> Any:
    encode: Callable[[Any], bytes] = msgspec.json.encode
    try:
        return pa.array([None if keeps_null and item is None else encode(item) for item in items], pa.binary())
    except (TypeError, ValueError) as error:
        raise InvalidRecord(f"{what} cannot be written as JSON: {error}. Convert it with map_batches first.") from None


def _headers(name: str, column: Any) -> Any:
    """Headers from a map, as `read` gives them, or from a list of (key, value), as Spark does."""
    if pa.types.is_map(column.type):
        pairs = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
        column = pa.ListArray.from_arrays(column.offsets, pairs)
    try:
        return column.cast(header_type())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise InvalidRecord(
            f"headers_field: the column {name!r} is {column.type}; headers are a map of text to bytes, or a list of "
            "structs with key and value."
        ) from None


def _milliseconds(name: str, column: Any, now_ms: int) -> Any:
    """Times in milliseconds since 1970; null becomes `now_ms`. A timestamp without a zone is UTC."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("ms", kind.tz), safe=False).cast(pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise InvalidRecord(f"timestamp_field: the column {name!r} is {kind}, and not a timestamp or milliseconds.")
    filled = column.cast(pa.int64()).fill_null(now_ms)
    if len(filled) and pc.min(filled).as_py() < 0:
        raise InvalidRecord(f"timestamp_field: the column {name!r} has a time before 1970, which a record cannot have.")
    return filled


def _partitions(name: str, column: Any) -> Any:
    if pa.types.is_null(column.type):
        return column.cast(pa.int32())
    if not pa.types.is_integer(column.type):
        raise InvalidRecord(f"partition_field: the column {name!r} is {column.type}, and not a whole number.")
    return column


def _is_binary(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_content(kind: Any) -> bool:
    return _is_binary(kind) or bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
