"""Clients in a hostile process: exceptions at any step, signal handlers, cancellations, forks, ended loops, threads.

Against a cluster of real parts in a thread of this process. `make test` strikes at a few steps of each call, spread
evenly; `make hostile` at every one (RAYLOG_HOSTILE_POINTS=all), in minutes.
"""
