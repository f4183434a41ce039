"""Partitions at rest, Raylog beside Kafka: what partitions cost while nothing happens, and the first record after that.

Each peer is measured alone with each number of partitions, on an empty directory:
creating them, memory and CPU at rest, listing them, a first record, a clean stop and the start after it (`case`).
"""
