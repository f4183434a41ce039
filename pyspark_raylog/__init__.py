"""Makes `format("raylog")` known to Spark: it looks for `DefaultSource` in top-level modules named `pyspark_*`."""

from raylog.spark.source import RaylogDataSource as DefaultSource

__all__ = ["DefaultSource"]
