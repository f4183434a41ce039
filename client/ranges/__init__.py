"""Ranges of offsets read into Arrow record batches: what Spark and Ray Data share; needs pyarrow and numpy."""
