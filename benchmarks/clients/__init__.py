"""The measured clients, each in its own process: `worker` runs one job.

Every module `*_client` has a class `Measured`: the fastest idiomatic use of one library.
"""
