"""The nearest valid name, for errors about an unknown one. Pure.

A module of its own, because it is a pure rule that all sentences share, and no error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NEAR = 0.6
"""Similarity from which a name is suggested: `group` for `grp`, but not `schedule` for `help`."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that looks most like ``name``, or None when none is near."""
    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=NEAR)
    return found[0] if found else None


def did_you_mean(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name: it has the nearest valid name or, when none is near, the first 12 names.

    ``kind``: what the name is a name of, such as "topic configuration".
    """
    names = sorted(known)
    close = nearest(name, names)
    if close is not None:
        return f"Unknown {kind} {name!r}; did you mean {close!r}?"
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"Unknown {kind} {name!r}; known are: {listed or 'none'}."
