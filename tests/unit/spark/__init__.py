"""Tests of the Spark data source that need no Spark session."""
