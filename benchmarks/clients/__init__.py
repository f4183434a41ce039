"""The measured clients, each in its own process: `python -m benchmarks.clients` runs one job.

Every module `*_client` has a class `Measured`: the fastest idiomatic use of one library.
"""
