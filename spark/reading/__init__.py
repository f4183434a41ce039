"""Reads into Spark, batch and stream; a stream is planned for each micro-batch by one process on the driver."""
