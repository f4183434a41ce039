"""The table of the hosts' own rules: what relies on each, its model, and its test against the real thing are there."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs.test_documents import names_in
from tests.unit.style.sources import ROOT

TABLE = ROOT / "tests" / "simulation" / "README.md"
HEADING = "## The hosts' own rules"
SPAN = re.compile(r"`([^`]+)`")


def rows() -> list[list[str]]:
    """The cells of each rule."""
    _, found, text = TABLE.read_text(encoding="utf-8").partition(HEADING)
    assert found
    lines = [line.strip("|").split(" | ") for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [cells for cells in lines if not set("".join(cells)) <= set("|- ") and cells[0].strip() != "rule"]


def is_there(span: str) -> bool:
    """Whether a file exists, and has the class, method or function behind the colon."""
    path, _, name = span.partition(":")
    return (ROOT / path).is_file() and (not name or name in names_in(ROOT / path))


def test_there_are_rules_of_each_host() -> None:
    assert len(rows()) > 30


@pytest.mark.parametrize("cells", rows(), ids=lambda cells: str(cells[0]).strip()[:60])
def test_what_a_rule_names_exists(cells: list[str]) -> None:
    assert len(cells) == 4
    for cell in cells[1:]:
        named = SPAN.findall(cell)
        assert named, f"{cells[0]}: {cell!r} names nothing"
        assert not [span for span in named if not is_there(span)]


@pytest.mark.parametrize("cells", rows(), ids=lambda cells: str(cells[0]).strip()[:60])
def test_a_rule_is_seen_by_a_test_against_the_real_thing(cells: list[str]) -> None:
    named = SPAN.findall(cells[-1])
    assert all(span.rpartition(":")[2].startswith("test_") and ":" in span for span in named), named
    real = ("tests/cluster/", "tests/data/", "tests/spark/", "tests/readers/", "tests/hosts/")
    assert all(span.startswith(real) for span in named), named
