"""The notes of a node's processes can be read and changed by their owner only, under any umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.actors.broker.node_page import _write_note
from raylog.actors.dozing.guard import Guard
from raylog.actors.processes.restart_notes import RestartNotes
from raylog.actors.processes.spare_roles import role_file, write_role
from tests.unit.actors.specs import replica_spec


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def loose(root: Path) -> list[str]:
    """Everything below `root` that others may read, write or enter."""
    found = list(root.rglob("*"))
    assert len(found) == 6
    return [str(path.relative_to(root)) for path in found if path.stat().st_mode & 0o077]


async def guarded(folder: Path) -> None:
    guard = Guard(folder)
    await guard.start(lambda: None)
    try:
        guard.note(os.getpid())
        guard._shorten()
    finally:
        await guard.stop()


async def test_notes_are_private_under_any_umask(tmp_path: Path) -> None:
    await guarded(tmp_path)
    _write_note(tmp_path / "metrics.address", ("127.0.0.1", 9_000))
    RestartNotes("replica:t-0", tmp_path / "restarts").note_failure()
    write_role(role_file(tmp_path, "replica:spare"), replica_spec(tmp_path, host="127.0.0.1"))
    assert loose(tmp_path) == []
