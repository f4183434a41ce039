"""Raylog: a Kafka-class log broker that lives inside a Ray cluster."""

__version__ = "0.1.0"
