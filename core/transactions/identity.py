"""Producer ids and epochs of transactions. Pure; used by the rules and by the records.

A producer's epoch rises with every end of a transaction, and with every initialisation. The marker that ends a
transaction has a higher epoch than its records, so that a record that arrives after the marker is refused.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MARKER_EPOCH_MAX: Final = 32_767
"""The highest epoch that fits into a batch. Only markers have it."""
PRODUCER_EPOCH_MAX: Final = MARKER_EPOCH_MAX - 1
"""The highest epoch of a producer: its marker needs a higher one. After it comes another producer id."""


class ProducerIdentity(NamedTuple):
    """What distinguishes a producer from those before it: a producer id, and its epoch."""

    producer_id: int
    epoch: int

    @property
    def is_none(self) -> bool:
        """Whether it stands for no producer."""
        return self.producer_id < 0

    @property
    def is_last(self) -> bool:
        """Whether the next identity needs another producer id."""
        return self.epoch >= PRODUCER_EPOCH_MAX


NO_IDENTITY: Final = ProducerIdentity(-1, -1)
