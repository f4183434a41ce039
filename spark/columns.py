"""The columns of the data source: those of Spark's Kafka source, in its order, with its types. Pure."""

from __future__ import annotations

from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

HEADERS = "headers"
TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
"""All columns; headers only when they are included."""


def row_schema(columns: tuple[str, ...]) -> StructType:
    """The schema with these columns of TYPES."""
    return StructType([StructField(name, TYPES[name]) for name in columns])


def arrow_schema(columns: tuple[str, ...]) -> Any:
    """The schema of the record batches. Spark checks the first one for equality with this."""
    return to_arrow_schema(row_schema(columns), timezone="UTC")
