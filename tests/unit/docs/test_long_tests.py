"""What `make test` leaves to `make test-long` is in the table, with what covers its subject in `make test`."""

from __future__ import annotations

import ast
import re

import pytest

from tests.unit.style.sources import ROOT, files_in, parsed

PAGE = ROOT / "docs" / "testing.md"
HEADING = "## What takes long"
SPAN = re.compile(r"`(tests/[\w/]+\.py)`")
MARK = "pytest.mark.long"


def rows() -> list[list[str]]:
    """The cells of each row of the table."""
    _, found, text = PAGE.read_text(encoding="utf-8").partition(HEADING)
    assert found
    lines = [line.strip("|").split("|") for line in text.partition("\n##")[0].splitlines() if line.startswith("| `")]
    return lines[1:]


def marks_of(tree: ast.Module) -> tuple[bool, bool]:
    """Whether a module has the marker anywhere, and whether it has it for all of its tests."""
    for_all = [
        ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(each) for each in node.targets] == ["pytestmark"]
    ]
    anywhere = any(isinstance(node, ast.Attribute) and ast.unparse(node) == MARK for node in ast.walk(tree))
    return anywhere, any(MARK in value for value in for_all)


def test_the_table_names_all_files_with_long_tests() -> None:
    with_its_text = [path for path in files_in("tests") if MARK in path.read_text(encoding="utf-8")]
    marked = [path.relative_to(ROOT).as_posix() for path in with_its_text if marks_of(parsed(path))[0]]
    assert sorted(marked) == sorted(name for cells in rows() for name in SPAN.findall(cells[0]))


@pytest.mark.parametrize("cells", rows(), ids=lambda cells: str(cells[0]).strip()[:60])
def test_what_covers_the_subject_is_in_make_test(cells: list[str]) -> None:
    covering = SPAN.findall(cells[-1])
    assert covering
    for name in covering:
        assert not marks_of(parsed(ROOT / name))[1], f"{name} is not in make test"


def test_make_divides_the_tests_between_its_two_targets() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    chosen = dict(
        re.findall(r"^(test|test-long):.*\n\t\$\(PY\) -m tests\.repeated .* -m ('not long'|long) ", text, re.MULTILINE)
    )
    assert chosen == {"test": "'not long'", "test-long": "long"}
