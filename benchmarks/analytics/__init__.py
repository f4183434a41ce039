"""Spark and Ray Data on Raylog, beside what they are without it.

A row (`rows`) starts the servers through the harness, fills topics, and measures contestants in turn. Each contestant
runs in a process of its own (`workers`) that stays for all rounds, so that a warm JVM is measured: Raylog's source,
Spark's connector for Kafka, and sources that give Spark what costs nothing to make (`sources`).
"""
