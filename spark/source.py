"""The data source `raylog`: `spark.read.format("raylog").option("subscribe", "orders").load()`.

Spark makes one `RaylogDataSource` for each query, in Python processes of its own. Columns and options are those of
Spark's Kafka source (raylog.spark.options lists them), so a query changes its format's name and its address only.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from raylog.core.errors import InvalidConfig
from raylog.spark.columns import row_schema
from raylog.spark.options import ReadOptions, parse_options
from raylog.spark.reader import RaylogReader


class RaylogDataSource(DataSource):
    """Topics of a Raylog cluster as rows. Registered by raylog.spark.session, or found through `pyspark_raylog`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "raylog"

    def schema(self) -> StructType:
        """Kafka's columns. Options are checked here already, so that load() fails and not the first action."""
        return row_schema(self._options().columns)

    def reader(self, schema: StructType) -> RaylogReader:
        """Read once, from one offset to another. Raises InvalidConfig for wrong options, and for another schema."""
        options = self._options()
        fixed = row_schema(options.columns)
        if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in fixed]:
            raise InvalidConfig(
                f"The columns of format('raylog') are fixed ({fixed.simpleString()}): leave .schema(...) out, and "
                "select or cast afterwards."
            )
        return RaylogReader(options)

    def _options(self) -> ReadOptions:
        return parse_options(self.options)
