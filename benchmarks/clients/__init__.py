"""The clients that are measured, each in a process of its own: `python -m benchmarks.clients` reads one job and runs it.

Every module but `base` and `java` has a class `Measured`, which is how one library is used by someone who wants it fast.
"""
