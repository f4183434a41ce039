"""Spark on Ray: a session with the data source `format("raylog")`; see raylog.spark.session and raylog.spark.source."""

from raylog.spark.session import register, session, stop

__all__ = ["register", "session", "stop"]
