"""What the voters have promised to one candidate, and what follows from it. Used by the proposer before it leads.

A voter whose log is lost comes back with another identity and without a say. It promises, but it is not counted before
a leader that the others elected has entered its new identity. There is one exception: when every voter has promised the
same epoch and none holds a log, then none was ever committed, and a cluster may be created (or taken over from the
older log of one controller, whose end is the ``floor``). What somebody said before that epoch proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raylog.core.quorum.events import PromiseAnswered
from raylog.core.quorum.history import LogHistory


def majority(voters: int) -> int:
    """Return the smallest number of voters that is more than half of them."""
    return voters // 2 + 1


@dataclass(frozen=True, slots=True)
class Choice:
    """The log that is adopted: of ``source`` (None: the older log that is taken over), as its promise described it."""

    source: int | None
    history: LogHistory


class Election:
    """Promises for one candidate, over all the epochs that it tries."""

    def __init__(self, voters: tuple[int, ...], floor: LogHistory | None) -> None:
        """``floor`` is the older log that the cluster is taken over from, None where there is none."""
        self._voters = voters
        self._floor = floor
        self.grants: dict[int, PromiseAnswered] = {}
        """Promises for the epoch that is tried now."""
        self.unreadable: set[int] = set()

    def new_epoch(self) -> None:
        """Promises for an earlier epoch are worth nothing."""
        self.grants.clear()
        self.unreadable.clear()

    @property
    def creates(self) -> bool:
        """Tell whether a cluster is to be created: all have promised this epoch, too few have a say, none has a log."""
        floor = (0, 0) if self._floor is None else self._floor.rank
        return (
            set(self.grants) == set(self._voters)
            and len(self._with_a_say()) < majority(len(self._voters))
            and all(grant.history.rank <= floor for grant in self.grants.values())
            and not self._lost_beside_data
        )

    @property
    def _lost_beside_data(self) -> bool:
        if self._floor is not None or self._with_a_say():
            return False
        return any(grant.holds_data for grant in self.grants.values())

    def _with_a_say(self) -> dict[int, PromiseAnswered]:
        return {voter: grant for voter, grant in self.grants.items() if grant.admitted}

    @property
    def hopeless(self) -> str:
        """The sentence for an operator when no majority can ever come together by itself; empty = wait."""
        lost = sorted(voter for voter, grant in self.grants.items() if not grant.admitted)
        if len(self._voters) - len(lost) >= majority(len(self._voters)) or self.creates:
            return ""
        floor = (0, 0) if self._floor is None else self._floor.rank
        held = any(grant.history.rank > floor for grant in self.grants.values())
        complete = set(self.grants) == set(self._voters)
        if not held and not (complete and self._lost_beside_data):
            return ""
        named = ", ".join(map(str, lost))
        return (
            f"The metadata log is lost on {len(lost)} of {len(self._voters)} voters (brokers {named}), and "
            f"{majority(len(self._voters))} intact ones are needed. Stop the cluster, restore the folder metadata of "
            "these brokers from a backup, and start again. Nothing was changed."
        )

    def choice(self) -> Choice | None:
        """Return the log to adopt, once enough voters have promised; None before."""
        usable = {voter: grant for voter, grant in self._with_a_say().items() if voter not in self.unreadable}
        if self.creates:
            return Choice(None, LogHistory() if self._floor is None else self._floor)
        if len(usable) < majority(len(self._voters)):
            return None
        # Of equal ones the log with the latest snapshot: there is less to read.
        best = max(usable.values(), key=lambda grant: (grant.history.rank, grant.history.start, grant.voter))
        if self._floor is not None and self._floor.rank >= best.history.rank:
            return Choice(None, self._floor)
        return Choice(best.voter, best.history)

    def confirmed(self, choice: Choice, members: Mapping[int, str]) -> bool:
        """Tell whether a majority of those that count by the adopted log has promised and holds no better log."""
        counted = [
            voter
            for voter, grant in self._with_a_say().items()
            if grant.history.rank <= choice.history.rank and (not members or members.get(voter) == grant.identity)
        ]
        return self.creates or len(counted) >= majority(len(self._voters))

    def identities(self) -> dict[int, str]:
        """Return the identities that count when the adopted log names none."""
        counted = self.grants if self.creates else self._with_a_say()
        return {voter: grant.identity for voter, grant in sorted(counted.items())}
