"""How many transactional ids there may be, and how much the transactions of a token's prefix may hold. Pure.

Clients choose transactional ids, and each is kept until it was unused for days. So there is a limit for each
coordinator, and one for each token's prefix: a token's holder can neither fill the coordinator's memory nor take the
room of all others.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raylog.base.errors import InvalidRequest, LimitReached, RaylogError
from raylog.core.transactions.records import TxnChanged
from raylog.core.transactions.settings import TxnSettings

ID_CHARACTERS_MAX: Final = 1_024
"""Longest new transactional id."""
PREFIXES_MAX: Final = 100
"""Most prefixes whose usage is kept up to date; that of any other is counted when it is needed."""
UNUSED_MS: Final = 3_600_000
"""In a full coordinator, ids that were unused for so long give way to new ones."""
GIVE_WAY_MAX: Final = 100
"""Most ids that give way at a time."""


@dataclass(slots=True)
class _Usage:
    """What the ids with a prefix take: how many they are, and the participants of their open transactions."""

    ids: int = 0
    participants: int = 0


class Room:
    """The limits of one coordinator's transactional ids, and how much of them is used."""

    def __init__(self, settings: TxnSettings) -> None:
        """Start empty."""
        self._settings = settings
        self._usage: dict[str, _Usage] = {}
        """Usage by prefix, least recently needed first."""

    def reconfigure(self, settings: TxnSettings) -> None:
        """Use these settings from now on; ids above new limits stay."""
        self._settings = settings

    def changed(self, name: str, before: TxnChanged | None, after: TxnChanged | None) -> None:
        """Note that an id was made, changed or deleted."""
        for prefix, usage in self._usage.items():
            if name.startswith(prefix):
                usage.ids += (after is not None) - (before is not None)
                usage.participants += _participants(after) - _participants(before)

    def refusal(self, name: str, prefix: str, txns: Mapping[str, TxnChanged]) -> RaylogError | None:
        """Return why there may be no new id, or None; ``prefix``: of the sender's token, empty = it has the secret."""
        settings = self._settings
        if len(name) > ID_CHARACTERS_MAX:
            return InvalidRequest(
                f"The transactional id has {len(name)} characters, and may have {ID_CHARACTERS_MAX} at most; use a "
                "shorter one."
            )
        if prefix and self._used_by(prefix, txns).ids >= settings.prefix_ids_max:
            return LimitReached(
                f"There are {settings.prefix_ids_max} transactional ids that begin with {prefix!r}, the most that a "
                "token may have (transactional.id.prefix.max). Use the same ids again for new producers, or wait until "
                "unused ones expire (transactional.id.expiration.ms)."
            )
        return None

    def is_full(self, txns: Mapping[str, TxnChanged]) -> bool:
        """Return whether the coordinator has as many ids as it may."""
        return len(txns) >= self._settings.ids_max

    def full(self) -> LimitReached:
        """Return the error for a new id in a full coordinator in which no id can give way."""
        return LimitReached(
            f"There are {self._settings.ids_max} transactional ids, the most that a coordinator keeps "
            "(transactional.id.max), and all were used within the last hour. Use the same ids again for new producers, "
            "or raise that."
        )

    def unused(self, txns: Mapping[str, TxnChanged], wall_ms: int) -> list[str]:
        """Return the ids that may give way to new ones: without an open transaction, those unused for longest first."""
        before_ms = wall_ms - UNUSED_MS
        idle = ((txn.changed_ms, name) for name, txn in txns.items() if not txn.state.is_open)
        return [name for _, name in heapq.nsmallest(GIVE_WAY_MAX, (each for each in idle if 0 <= each[0] <= before_ms))]

    def has_room_for(
        self, prefix: str, txns: Mapping[str, TxnChanged], before: TxnChanged, after: TxnChanged
    ) -> LimitReached | None:
        """Return why a transaction may not get more participants, or None."""
        more, most = _participants(after) - _participants(before), self._settings.prefix_participants_max
        if not prefix or more <= 0 or self._used_by(prefix, txns).participants + more <= most:
            return None
        return LimitReached(
            f"The open transactions of ids that begin with {prefix!r} would have more than {most} partitions and "
            "groups together, the most that a token may have (transactional.id.prefix.partitions.max). End some "
            "first, or use smaller ones."
        )

    def _used_by(self, prefix: str, txns: Mapping[str, TxnChanged]) -> _Usage:
        usage = self._usage.pop(prefix, None)
        if usage is None:
            found = [txn for name, txn in txns.items() if name.startswith(prefix)]
            usage = _Usage(len(found), sum(map(_participants, found)))
        self._usage[prefix] = usage
        if len(self._usage) > PREFIXES_MAX:
            del self._usage[next(iter(self._usage))]
        return usage

    def validate(self, txns: Mapping[str, TxnChanged]) -> list[str]:
        """Return the prefixes whose noted usage is wrong; empty = all is well."""
        wrong = []
        for prefix, usage in self._usage.items():
            found = [txn for name, txn in txns.items() if name.startswith(prefix)]
            if (usage.ids, usage.participants) != (len(found), sum(map(_participants, found))):
                wrong.append(prefix)
        return wrong


def _participants(txn: TxnChanged | None) -> int:
    return 0 if txn is None else len(txn.partitions) + len(txn.groups)
