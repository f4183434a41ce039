"""A planted bug: a patch of one method of shipped code, and the rules that must notice it.

Planted in the process of one run, after the world has bound the shipped modules, and ended with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.simulation.whole.plan import WHOLE

SEEDS = 8


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug: ``patch`` takes the original method and returns the one that breaks a rule."""

    name: str
    target: Any
    attribute: str
    patch: Callable[[Any], Any]
    rules: tuple[str, ...]
    seeds: int = SEEDS
    """The last seed by which it must be noticed."""
    profile: str = WHOLE
    first: int = 1
    """The first seed to run; later where an earlier one never ends with the bug."""

    features: tuple[str, ...] = ()
    """What ``whole-everything`` mixes in its seeds; empty = what each draws."""

    def plant(self) -> None:
        """Apply the bug from now on, in this process."""
        setattr(self.target, self.attribute, self.patch(getattr(self.target, self.attribute)))
