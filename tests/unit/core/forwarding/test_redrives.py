"""Where the next redrive of a partition begins, and what this one has left."""

from __future__ import annotations

import pytest

from raylog.core.forwarding.redrives import after_redrive


@pytest.mark.parametrize(
    ("before", "sent_below", "position", "sent", "skipped", "expected"),
    [
        (0, 0, 10, 10, -1, (10, -1)),
        (0, 0, 10, 0, 0, (0, -1)),
        (0, 0, 10, 6, 3, (10, 3)),
        (10, 10, 10, 4, -1, (10, -1)),
        (10, 10, 5, 1, -1, (10, 5)),
        (10, 10, 20, 3, 3, (20, 3)),
        (10, 10, 12, 0, 3, (10, 3)),
        (10, 0, 4, 4, -1, (4, -1)),
        (10, 0, 10, 4, 2, (10, 2)),
    ],
    ids=[
        "all are sent",
        "none is sent, so all stay",
        "some are left",
        "what was left is sent",
        "cancelled among what was left",
        "new ones are sent, and the left ones stay",
        "nothing can be sent",
        "from the start, and cancelled",
        "from the start, and some are left",
    ],
)
def test_what_a_redrive_leaves_is_known(
    before: int, sent_below: int, position: int, sent: int, skipped: int, expected: tuple[int, int]
) -> None:
    assert after_redrive(before, sent_below, position, sent, skipped) == expected
