"""The data source `raylog`: `spark.read.format("raylog").option("subscribe", "orders").load()`.

Spark makes one `RaylogDataSource` for each query, in Python processes of its own. Columns and options are those of
Spark's Kafka source (raylog.spark.reading.options lists them), so a query changes only the name of its format and its
address.

Each step of a query's planning is a new process that imports this module, and then does one thing. So streams and
writers are imported where they are made: together they took a tenth of a second of each process.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from raylog.base.errors import InvalidConfig
from raylog.spark.reading.columns import row_schema
from raylog.spark.reading.options import ReadOptions, parse_options
from raylog.spark.reading.reader import RaylogReader, keep_what_is_loaded
from raylog.spark.reading.short_errors import without_frames
from raylog.spark.to_driver import warnings_to_driver

if TYPE_CHECKING:
    from raylog.spark.reading.stream_reader import RaylogStreamReader, RefusedStreamReader
    from raylog.spark.writing.options import WriteOptions
    from raylog.spark.writing.writers import RaylogBatchWriter, RaylogStreamWriter

logger = logging.getLogger(__name__)


@without_frames("schema", "reader", "streamReader", "writer", "streamWriter")
class RaylogDataSource(DataSource):
    """Topics of a Raylog cluster as rows. Registered by raylog.spark.session, or found through `pyspark_raylog`."""

    _has_reader = False
    """Whether this process has made a reader: from then on Spark may pickle this object into tasks with the reader."""

    def __getstate__(self) -> dict[str, object]:
        """State for other processes; nothing once there is a reader, because tasks may not get the options' secret."""
        return {} if self._has_reader else self.__dict__

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "raylog"

    def schema(self) -> StructType:
        """Kafka's columns. Options are checked here already, so that load() fails instead of the first action.

        Spark has not decided between batch and stream yet, so options that are right for either pass. Options without
        effect are warned of here, because Spark calls this once for each load().
        """
        warnings_to_driver()
        keep_what_is_loaded()
        options = self._options_of_either()
        for sentence in options.ignored:
            logger.warning("%s", sentence)
        return row_schema(options.columns)

    def reader(self, schema: StructType) -> RaylogReader:
        """Read once, from one offset to another. Raises InvalidConfig for wrong options, and for another schema."""
        warnings_to_driver()
        options = parse_options(self.options)
        _check_schema(schema, options)
        self._has_reader = True
        return RaylogReader(options, schema)

    def streamReader(self, schema: StructType) -> RaylogStreamReader | RefusedStreamReader:
        """Follow what the options name. For wrong options or another schema, the reader raises InvalidConfig."""
        from raylog.spark.reading.stream_reader import RaylogStreamReader, RefusedStreamReader

        warnings_to_driver()
        try:
            options = parse_options(self.options, is_stream=True)
            _check_schema(schema, options)
        except InvalidConfig as error:
            return RefusedStreamReader(error)
        self._has_reader = True
        return RaylogStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> RaylogBatchWriter:
        """Write once. Raises InvalidConfig for wrong options or columns, and for a mode other than append."""
        from raylog.spark.writing.writers import RaylogBatchWriter

        if overwrite:
            raise InvalidConfig("A topic cannot be overwritten, only appended to: use .mode('append').")
        return RaylogBatchWriter(self._write_options(schema, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> RaylogStreamWriter:
        """Write micro-batches; in complete mode each has all rows again, as with Kafka's sink. Raises InvalidConfig."""
        from raylog.spark.writing.writers import RaylogStreamWriter

        return RaylogStreamWriter(self._write_options(schema, streaming=True))

    def _options_of_either(self) -> ReadOptions:
        try:
            return parse_options(self.options)
        except InvalidConfig as error:
            try:
                return parse_options(self.options, is_stream=True)
            except InvalidConfig:
                raise error from None

    def _write_options(self, schema: StructType, *, streaming: bool) -> WriteOptions:
        from raylog.spark.writing.columns import check_columns
        from raylog.spark.writing.options import parse_write_options

        warnings_to_driver()
        options = parse_write_options(self.options, streaming=streaming)
        check_columns(schema, options.topic)
        return options


def _check_schema(schema: StructType, options: ReadOptions) -> None:
    fixed = row_schema(options.columns)
    if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in fixed]:
        raise InvalidConfig(
            f"The columns of format('raylog') are fixed ({fixed.simpleString()}): leave .schema(...) out, "
            "choose with the option columns, and cast afterwards."
        )
