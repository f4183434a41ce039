"""A module has at most 700 lines, where it is one thing, and a function 60: one screenful."""

import ast

import pytest

from tests.unit.style.sources import OTHERS, PACKAGES, ROOT, files_in, parsed

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60

FILES = files_in(*PACKAGES, *OTHERS)


def test_there_is_something_to_measure() -> None:
    assert len(FILES) > 20


def test_no_file_is_longer_than_its_budget() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    too_long = {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX}
    assert not too_long, f"split these by concept: {too_long}"


def test_no_function_is_longer_than_its_budget() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not too_long, "\n".join(too_long)


@pytest.mark.parametrize("folder", PACKAGES)
def test_every_module_says_what_it_is_for(folder: str) -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in files_in(folder)
        if parsed(path).body and not ast.get_docstring(parsed(path))
    ]
    assert not silent, f"these modules have no docstring: {silent}"
