"""Stream reads: `spark.readStream.format("raylog")`, planned for each micro-batch by one process on the driver."""
