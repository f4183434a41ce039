"""A planted bug: a patch of one method, and the checker that must notice it. Used by every table of bugs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

STORY = "story"
"""In place of a profile: the bug is caught by a story."""


@dataclass(frozen=True, slots=True)
class Planted:
    """One bug: what is replaced by what, the profile that catches it, within how many seeds, and by which rules."""

    name: str
    profile: str
    seeds: int
    rules: tuple[str, ...]
    target: Any
    attribute: str
    substitute: Any

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the bug while the block runs."""
        with patch.object(self.target, self.attribute, self.substitute):
            yield
