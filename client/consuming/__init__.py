"""The parts of the Consumer: positions and buffers, fetching, offsets, and membership in a group.

`opening.py` turns fetched batches into records; `partition.py` keeps position and buffer of one partition, and
`assignment.py` those of all of them; `membership.py` is one member of a group as a pure machine; `fetcher.py`,
`offsets.py` and `group.py` speak to replicas, to leaders and to the coordinator; `engine.py` puts them together behind
one step that `AsyncConsumer` and `Consumer` (in `raylog.client.consumer`) share.
"""
