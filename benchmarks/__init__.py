"""Raylog and its peers, measured side by side in one run: `make bench`, or `python -m benchmarks --help`.

The harness (`__main__`, `bench`, `scenarios`) starts real servers (`peers`) and one process per client and measurement
(`clients`, which run `loads`), and writes JSON, tables and plots. docs/performance.md is made from the JSON of one run.
"""
