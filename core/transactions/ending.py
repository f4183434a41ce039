"""The participants of decided transactions that do not have their marker yet. Owned by the machine. Pure."""

from __future__ import annotations

from raylog.core.transactions.identity import ProducerIdentity
from raylog.core.transactions.records import TxnChanged
from raylog.protocol.transactions import TxnPartition

Participant = TxnPartition | str
"""A partition, or a group by its name."""


class Ending:
    """The participants without their marker, by transactional id."""

    def __init__(self) -> None:
        """Start empty."""
        self._left: dict[str, tuple[ProducerIdentity, set[Participant]]] = {}

    def __len__(self) -> int:
        """Return how many transactions are being ended."""
        return len(self._left)

    def __contains__(self, name: str) -> bool:
        """Return whether the transaction of an id is being ended."""
        return name in self._left

    def begin(self, decided: TxnChanged) -> None:
        """Note the participants of a decided transaction."""
        self._left[decided.transactional_id] = decided.writer, {*decided.partitions, *decided.groups}

    def written(self, name: str, writer: ProducerIdentity, participant: Participant) -> bool:
        """Note a marker; return whether it was the last one. Those of other transactions, and repetitions, are not."""
        held = self._left.get(name)
        if held is None or held[0] != writer or participant not in held[1]:
            return False
        held[1].discard(participant)
        if held[1]:
            return False
        del self._left[name]
        return True
