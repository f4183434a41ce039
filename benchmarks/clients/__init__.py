"""The clients that are measured, each in a process of its own: `python -m benchmarks.clients` runs one job.

Every module `*_client` has a class `Measured`: how one library is used by someone who wants it fast.
"""
