"""Nothing unfinished and nothing private to one machine is left in the tree."""

import ast
import re
from pathlib import Path

from tests.unit.style.sources import OTHERS, PACKAGES, ROOT, files_in, parsed

# Written in halves, so that this file does not find itself.
UNFINISHED = re.compile(
    r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b|\bfor" + " now" + r"\b"
)
DEBUGGING = {"breakpoint", "set_trace"}
BROAD = {"Exception", "BaseException"}


def text_files() -> list[Path]:
    """Python files, and the texts beside them that users read."""
    texts = [path for pattern in ("*.md", "*.toml", "*.yaml", "Makefile") for path in ROOT.glob(pattern)]
    return files_in(*PACKAGES, *OTHERS) + texts + sorted((ROOT / "docs").rglob("*.md"))


def test_nothing_unfinished_is_left() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert not found, "\n".join(found)


def test_no_file_names_the_folder_this_tree_happens_to_lie_in() -> None:
    found = [str(path.relative_to(ROOT)) for path in text_files() if f"{ROOT}/" in path.read_text(encoding="utf-8")]
    assert not found, found


def test_no_debugger_is_left() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files_in(*PACKAGES, *OTHERS)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in DEBUGGING
    ]
    assert not found, found


def test_no_wait_loses_a_cancellation() -> None:
    """`asyncio.wait_for` of Python 3.11 returns a result that meets a cancellation; `asyncio.timeout` does not."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files_in(*PACKAGES)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.wait_for"
    ]
    assert not found, found


def test_a_broad_except_says_why_beside_it() -> None:
    """A bare or broad handler that does not raise again hides bugs, unless the comment at its head gives the reason."""
    found = []
    for path in files_in(*PACKAGES):
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = (
                set() if node.type is None else {part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)}
            )
            raises = any(isinstance(part, ast.Raise) for statement in node.body for part in ast.walk(statement))
            head = lines[node.lineno - 2 : node.body[0].lineno]
            if (node.type is None or caught & BROAD) and not raises and not any("#" in line for line in head):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found, found


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in files_in("tests")}
    missing = sorted(str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").is_file())
    assert not missing, missing
