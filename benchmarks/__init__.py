"""Raylog measured, alone or beside its peers: `python -m benchmarks --help`, or `make bench` for the whole page.

`page` starts real servers (`peers`) and one process per client and measurement (`clients`, which run `loads`), has
`scenarios` measured by the harness (`bench`), and writes JSON, tables and plots. docs/performance.md is made from the
JSON of one run. Beside it, the commands of `__main__` measure one thing each.
"""
