"""A module has at most 700 lines, where it is one thing, a function 60: one screenful, and a folder 22 modules.

A small module that one other module imports is a part of that one, unless its docstring gives the reason: it has the
words "A module of its own, because".
"""

import ast
from collections import Counter

import pytest

from tests.unit.style.sources import OTHERS, PACKAGES, ROOT, files_in, imports_of, module_name, parsed

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60
FOLDER_FILES_MAX = 22
SMALL_LINES = 60
OWN_REASON = "A module of its own, because "

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


def test_no_folder_has_more_files_than_its_budget() -> None:
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in files_in(*PACKAGES))
    too_many = {folder: count for folder, count in counts.items() if count > FOLDER_FILES_MAX}
    assert not too_many, f"split these by subject: {too_many}"


def test_a_small_module_of_one_importer_says_why() -> None:
    files = {module_name(path): path for path in files_in(*PACKAGES)}
    importers = Counter(
        target
        for name, path in files.items()
        for target in {found.module for found in imports_of(path)} & files.keys() - {name}
    )
    without_reason = {
        name: lines
        for name, path in files.items()
        if path.name != "__init__.py"
        and importers[name] == 1
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) < SMALL_LINES
        and OWN_REASON not in " ".join((ast.get_docstring(parsed(path)) or "").split())
    }
    assert not without_reason, f"fold each into its importer, or write {OWN_REASON!r}: {without_reason}"
