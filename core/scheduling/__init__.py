"""Delayed records as a state machine: what a partition of ``__scheduled`` holds, and when it goes where (ADR 0056).

- The *owner* of a partition of ``__scheduled`` is its leader. It writes *rows* to the log beside producers' records.
- A *key* is the due time and the offset of a waiting record; it is *fresh* until it is sealed into a *run*, a row with
  sorted keys. Fresh keys are in memory, those in runs are read when they are needed.
- A *lane* is the way to one target partition, with its producer epoch and sequences.
- A *round* is a row that names the batches to deliver. They are sent once it is committed, and a later round
  *acknowledges* them.
- A *name* is the 128-bit hash of a schedule id in its target topic. A *half message* is held until it is decided.
"""
