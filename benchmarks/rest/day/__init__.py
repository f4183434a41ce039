"""A day of a broker in minutes: how many of its partitions are awake, dozing and asleep, and what that costs.

`python -m benchmarks.rest.day --help` runs it; `python -m benchmarks.rest.day.picture RESULTS.json` draws a run for the
documents. All times are divided by the same factor: those of the records (`pattern`), `replica.sleep.after.ms` and
`replica.doze.after.ms`. What the start of a process costs is not divided.
"""
