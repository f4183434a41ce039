"""Record batches for consumers and Spark: fetched by socket or read from local files, decoded to records or columns."""
