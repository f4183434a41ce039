"""The columns of the data source: those of Spark's Kafka source, in its order, with its types.

Unlike there, columns that every record has are declared as never null. Otherwise Spark looks for nulls in each column
of each row, which takes 5 % or more of a read of small records (docs/adr/0055-ranges-into-arrow.md). Pure.
"""

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
"""All columns. `headers` is left out unless it is requested."""
NULLABLE = frozenset({"key", "value", HEADERS})
"""Columns that may be null, because a record may lack them."""


def row_schema(columns: tuple[str, ...]) -> StructType:
    """The schema with these columns of TYPES."""
    return StructType([StructField(name, TYPES[name], name in NULLABLE) for name in columns])


def arrow_schema(schema: StructType) -> Any:
    """The Arrow schema of a query's record batches. Spark compares the schema of the first batch with it."""
    return to_arrow_schema(schema, timezone="UTC")
