"""What the voters have answered to one candidate, and what follows from it. Used by the proposer before it leads.

A voter whose log is lost comes back with another identity and without a say. It is never counted before a leader that
the others elected has entered its new identity; only when no voter at all holds a log may it join at once, because
then a cluster is being created (or taken over from the older log of one controller, whose end is the ``floor``).
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
        self.answers: dict[int, PromiseAnswered] = {}
        """The latest answer of each voter, to whatever epoch."""
        self.grants: dict[int, PromiseAnswered] = {}
        """Promises for the epoch that is tried now."""
        self.unreadable: set[int] = set()

    def new_epoch(self) -> None:
        """Promises for an earlier epoch are worth nothing."""
        self.grants.clear()
        self.unreadable.clear()

    def take(self, answer: PromiseAnswered) -> None:
        """Keep an answer."""
        self.answers[answer.voter] = answer
        if answer.granted:
            self.grants[answer.voter] = answer

    @property
    def may_create(self) -> bool:
        """Tell whether voters without a say may join: every voter has answered, and none holds more than the floor."""
        floor = (0, 0) if self._floor is None else self._floor.rank
        return (
            set(self.answers) == set(self._voters)
            and all(answer.history.rank <= floor for answer in self.answers.values())
            and not self._lost_with_data
        )

    @property
    def _lost_with_data(self) -> bool:
        if self._floor is not None or any(answer.admitted for answer in self.answers.values()):
            return False
        return any(answer.holds_data for answer in self.answers.values())

    @property
    def hopeless(self) -> str:
        """The sentence for an operator when no majority can ever come together by itself; empty = wait."""
        lost = sorted(voter for voter, answer in self.answers.items() if not answer.admitted)
        if len(self._voters) - len(lost) >= majority(len(self._voters)) or self.may_create:
            return ""
        held = any(answer.history.rank > (0, 0) for answer in self.answers.values())
        complete = set(self.answers) == set(self._voters)
        if not held and not (complete and self._lost_with_data):
            return ""
        named = ", ".join(map(str, lost))
        return (
            f"The metadata log is lost on {len(lost)} of {len(self._voters)} voters (brokers {named}), and "
            f"{majority(len(self._voters))} intact ones are needed. Stop the cluster, restore the data directories of "
            "these brokers, or their folders __cluster_metadata-0 and voter files, from a backup, and start again. "
            "Nothing was changed."
        )

    def choice(self) -> Choice | None:
        """Return the log to adopt, once a majority has promised; None before."""
        usable = {voter: grant for voter, grant in self.grants.items() if voter not in self.unreadable}
        if len(usable) < majority(len(self._voters)):
            return None
        best = max(usable.values(), key=lambda grant: (grant.history.rank, grant.voter))
        if self._floor is not None and self._floor.rank >= best.history.rank:
            return Choice(None, self._floor)
        return Choice(best.voter, best.history)

    def confirmed(self, choice: Choice, members: Mapping[int, str]) -> bool:
        """Tell whether a majority of those that count by the adopted log has promised and holds no better log."""
        counted = [
            voter
            for voter, grant in self.grants.items()
            if grant.history.rank <= choice.history.rank and (not members or members.get(voter) == grant.identity)
        ]
        return len(counted) >= majority(len(self._voters))

    def identities(self) -> dict[int, str]:
        """Return the identity that each voter gave last."""
        return {voter: answer.identity for voter, answer in sorted(self.answers.items())}
