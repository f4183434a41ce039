"""The broker that answers in place of the leaders of partitions that sleep, which have no process (ADR 0042).

The controller decides which partitions fall asleep and which wake (``core/controller/sleep.py``, ``wake_queue.py``).
"""
