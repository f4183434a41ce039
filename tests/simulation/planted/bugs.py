"""A planted bug: a patch of one method, and the checker that must notice it. Used by every table of bugs."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from unittest.mock import patch

STORY = "story"
"""In place of a profile: the bug is caught by a story."""


class AnyBug(Protocol):
    """What the bugs of all worlds have: they are noticed by a seed from ``first`` to ``seeds``, by one of the rules."""

    @property
    def name(self) -> str: ...
    @property
    def profile(self) -> str: ...
    @property
    def rules(self) -> tuple[str, ...]: ...
    @property
    def first(self) -> int: ...
    @property
    def seeds(self) -> int: ...


class Edit:
    """A change of a function's source: the first text is replaced by the second, the third by the fourth."""

    def __init__(self, *texts: str) -> None:
        """Each text to replace occurs exactly once."""
        self._pairs = list(zip(texts[::2], texts[1::2], strict=True))

    def of(self, original: Any) -> Any:
        """Return the function or property with the change; raises LookupError where its source has changed since."""
        function: Any = original.fget if isinstance(original, property) else original
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in self._pairs:
            if source.count(old) != 1:
                raise LookupError(f"{function.__qualname__} has {source.count(old)} times: {old}")
            source = source.replace(old, new)
        made: dict[str, Any] = {}
        exec(compile(f"from __future__ import annotations\n{source}", "<planted>", "exec"), function.__globals__, made)
        return made[function.__name__]


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
    """The attribute's value, or the :class:`Edit` that makes it."""
    first: int = 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the bug while the block runs."""
        value = self.substitute
        if isinstance(value, Edit):
            value = value.of(getattr(self.target, self.attribute))
        with patch.object(self.target, self.attribute, value):
            yield


def bugs(profile: str, rules: tuple[str, ...], *rows: tuple[Any, ...]) -> tuple[Planted, ...]:
    """Return the bugs that the same rules of one profile catch, from rows of name, seeds, target and attribute.

    Behind these a row has its substitute, or the texts of an :class:`Edit`.
    """
    made = []
    for name, seeds, target, attribute, *rest in rows:
        substitute = Edit(*rest) if isinstance(rest[0], str) else rest[0]
        made.append(Planted(name, profile, seeds, rules, target, attribute, substitute))
    return tuple(made)


def nothing(*_: Any, **__: Any) -> None:
    """In place of a method that matters."""
