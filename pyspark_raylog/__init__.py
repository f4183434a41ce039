"""Makes `format("raylog")` known to Spark: it looks for `DefaultSource` in top-level modules named `pyspark_*`."""

try:
    from raylog.spark.source import RaylogDataSource as DefaultSource
except ImportError:
    from raylog.spark.versions import WITHOUT_RAY, require

    require(WITHOUT_RAY, "The data source raylog")  # most often a package is too old, and this says which
    raise

__all__ = ["DefaultSource"]
