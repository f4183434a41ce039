"""Batches that an earlier release has stored: it opened no compressed body, so that some in a log do not open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from raylog.storage.log import bodies, validation


@contextmanager
def stored_unopened() -> Iterator[None]:
    """The leaders of this process store compressed bodies as they come, for the length of a block."""
    with (
        patch.object(bodies, "open_to_check", lambda *_: 0),
        patch.object(validation, "open_to_check", lambda *_: 0),
    ):
        yield
