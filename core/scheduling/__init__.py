"""Delayed records as a state machine: what a partition of ``__scheduled`` holds, and when it goes where (ADR 0056)."""
