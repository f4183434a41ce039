"""The port to the operating system: storage touches files through it alone, and a simulator can take its place."""

import ast
import os
from pathlib import Path

import pytest

from raylog.storage import filesystem
from raylog.storage.files import read_bytes, remove_tree, write_atomically
from tests.unit.storage.logs import NOW, batch, open_log

STORAGE = Path(__file__).parents[3] / "storage"
PATH_CALLS = {"exists", "is_dir", "is_file", "iterdir", "glob", "unlink", "rename", "read_text", "write_text"}
PATH_CALLS |= {"read_bytes", "write_bytes", "symlink_to", "rmdir", "lstat", "resolve"}
LOCKS = "directory.py"
"""Its lock file is held by processes, which no simulated disk has."""


@pytest.mark.parametrize("path", sorted(STORAGE.rglob("*.py")), ids=lambda path: path.name)
def test_storage_touches_files_through_the_port_alone(path: Path) -> None:
    if path.name in ("filesystem.py", LOCKS):
        return
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name.startswith("os."):
            found |= {name} & {f"os.{call}" for call in filesystem.CALLS}
        elif isinstance(node.func, ast.Attribute) and not name.startswith("filesystem."):
            found |= {node.func.attr} & PATH_CALLS
        elif name == "open":
            found.add(name)
    assert not found


def test_a_bound_file_system_answers_every_call_until_its_block_ends(tmp_path: Path) -> None:
    calls: set[str] = set()

    class Counting:
        def __getattr__(self, name: str) -> object:
            real = getattr(filesystem, name)

            def counted(*arguments: object) -> object:
                calls.add(name)
                return real(*arguments)

            return counted

    before = {name: getattr(filesystem, name) for name in filesystem.CALLS}
    with filesystem.bind(Counting()):
        log = open_log(tmp_path / "t-0")
        log.append_as_leader(batch(b"a"), 1, NOW)
        log.sync()
        log.close()
    assert {"open", "pwrite", "fdatasync", "fsync", "replace", "mkdir", "listdir", "close"} <= calls
    assert before == {name: getattr(filesystem, name) for name in filesystem.CALLS}
    assert filesystem.pwrite is os.pwrite


def test_a_removed_tree_takes_links_and_not_what_they_lead_to(tmp_path: Path) -> None:
    kept, doomed = tmp_path / "kept", tmp_path / "doomed"
    for folder in (kept, doomed, doomed / "below"):
        folder.mkdir()
        write_atomically(folder / "file", b"content")
    (doomed / "link").symlink_to(kept)
    remove_tree(doomed)
    assert (doomed.exists(), read_bytes(kept / "file")) == (False, b"content")
