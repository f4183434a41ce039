"""What became of a goal. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and its result; `reached` is None when one of the two sides is missing."""

    goal: str
    found: str
    reached: bool | None
