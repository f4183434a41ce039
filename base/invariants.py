"""Checks that stay on in production: ``assert`` vanishes under ``-O``, these do not."""

from __future__ import annotations

from collections.abc import Iterable


class InvariantBroken(Exception):
    """A claim that can only be false through a defect in Raylog. Never caught: the actor ends and is restarted."""

    def __init__(self, claim: str, story: Iterable[object] = ()) -> None:
        """Keep the claim and the last steps before it failed."""
        self.claim = claim
        self.story = tuple(story)
        lines = "".join(f"\n  {step}" for step in self.story)
        super().__init__(f"{claim}{lines}")


def require(holds: bool, claim: str, story: Iterable[object] = ()) -> None:
    """Raise :class:`InvariantBroken` with the claim and its story unless it holds."""
    if not holds:
        raise InvariantBroken(claim, story)
