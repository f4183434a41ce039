"""Bugs planted in shipped code, which the world has to notice: each replaces one method, in the process of one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug: what plants it, and within how many seeds of which profile which rules have to notice it."""

    name: str
    plant: Callable[[], None]
    rules: tuple[str, ...]
    seeds: int = 10
    profile: str = "whole"


BUGS: Final[dict[str, Bug]] = {}
