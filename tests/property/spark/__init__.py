"""Laws of the Spark data source."""
