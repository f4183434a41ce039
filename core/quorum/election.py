"""Promises for one candidate's epoch, and the log that follows from them. Used by the proposer before it leads.

A candidate sends its request to every known broker, because the voters are known only from a log. Of the logs of
brokers that promised, it reads the best one. The last configuration in that log, committed or not, names the voters
whose promises count (Raft, section 4.1), even if the log's owner is not among them. If these are too few, the next best
log may suffice: its configuration may name other voters. A copy that was lost comes back under another identity, which
no configuration has.

A cluster is created only when every founder promised this epoch, each of them was made a founder by the start that
creates the cluster, and no broker shows a log. A broker that lost its directory is no longer a founder.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from raylog.core.quorum.changes import Members, majority
from raylog.core.quorum.events import PromiseAnswered
from raylog.core.quorum.history import LogHistory

EMPTY: Final = (0, 0)
"""The rank of a log without a record."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The log to adopt: that of broker ``source`` (None = a new, empty log), as its promise described it."""

    source: int | None
    history: LogHistory


class Election:
    """Promises for one candidate, over all the epochs that it tries."""

    def __init__(self, founders: tuple[int, ...]) -> None:
        """``founders`` make the first configuration of a cluster that is created."""
        self._founders = founders
        self.grants: dict[int, PromiseAnswered] = {}
        """Promises for the current epoch."""
        self.configurations: dict[tuple[int, int], Members] = {}
        """The last configuration of each log that was read in this epoch, by rank: logs of one rank are equal."""

    def new_epoch(self) -> None:
        """Start over for a new epoch: promises for an earlier one do not count."""
        self.grants.clear()
        self.configurations.clear()

    @property
    def creates(self) -> bool:
        """Return whether a cluster is to be created."""
        return (
            bool(self._founders)
            and all(number in self.grants and self.grants[number].founder for number in self._founders)
            and not any(grant.history.rank > EMPTY or grant.holds_data for grant in self.grants.values())
        )

    def hopeless(self, requested: Collection[int]) -> str:
        """Return the operator message when promises of all of ``requested`` do not suffice; empty = wait."""
        if any(number not in self.grants for number in requested) or self.creates:
            return ""
        best = max((grant.history.rank for grant in self.grants.values()), default=EMPTY)
        members = self.configurations.get(best, {})
        expected = sorted(members) if members else sorted(self._founders or self.grants)
        lost = [number for number in expected if not members or self._identity(number) != members[number]]
        if not expected or len(expected) - len(lost) >= majority(len(expected)):
            return ""
        named = ", ".join(map(str, lost))
        return (
            f"The metadata log is lost on {len(lost)} of {len(expected)} voters (brokers {named}), and "
            f"{majority(len(expected))} intact ones are needed. Stop the cluster, restore the folder metadata of "
            "these brokers from a backup, and start again. Nothing was changed."
        )

    def _identity(self, number: int) -> str:
        grant = self.grants.get(number)
        return "" if grant is None else grant.identity

    def choice(self) -> Choice | None:
        """Return the log to read, or the one to lead with; None = more promises are needed."""
        if self.creates:
            return Choice(None, LogHistory())
        # Of logs of equal rank, the one with the latest snapshot comes first: there is less to read.
        order = sorted(
            self.grants.values(), key=lambda grant: (grant.history.rank, grant.history.start, grant.voter), reverse=True
        )
        for grant in order:
            choice = Choice(grant.voter, grant.history)
            members = self.configurations.get(grant.history.rank)
            if grant.history.rank > EMPTY and (members is None or self.confirmed(choice, members)):
                return choice
        return None

    def confirmed(self, choice: Choice, members: Members) -> bool:
        """Return whether a majority of the adopted log's voters has promised and holds no better log."""
        if choice.source is None:
            return self.creates
        counted = [
            number
            for number, grant in self.grants.items()
            if grant.history.rank <= choice.history.rank
            and (members.get(number) == grant.identity if members else number in self._founders)
        ]
        return len(counted) >= majority(len(members or self._founders))

    def founding(self) -> dict[int, str]:
        """Return the first configuration, for a log that has none."""
        return {number: self.grants[number].identity for number in self._founders if number in self.grants}
