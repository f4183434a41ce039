"""The table of the hosts' own rules: what relies on each, its model, and its test against the real thing are there."""

from __future__ import annotations

import re

from tests.unit.docs.documents import check_each
from tests.unit.docs.test_documents import is_function
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
    return is_function(path, name) if name else (ROOT / path).is_file()


def test_there_are_rules_of_each_host() -> None:
    assert len(rows()) > 30


def test_what_the_rules_name_exists() -> None:
    def check(cells: list[str]) -> None:
        assert len(cells) == 4
        for cell in cells[1:]:
            named = SPAN.findall(cell)
            assert named, f"{cell!r} names nothing"
            assert not [span for span in named if not is_there(span)]

    check_each(check, rows(), lambda cells: cells[0])


def test_each_rule_is_seen_by_a_test_against_the_real_thing() -> None:
    real = re.compile(r"tests/(?:cluster|data|spark|readers|hosts)/.+:test_\w+")
    assert not [span for cells in rows() for span in SPAN.findall(cells[-1]) if not real.fullmatch(span)]
