"""docs/protocol.md: its table is that of the pages, and every rule that is quoted stands in it."""

from __future__ import annotations

import re

from raylog.protocol.documents.page import MARK, updated
from tests.unit.style.sources import OTHERS, PACKAGES, ROOT, files_in

DOCUMENT = ROOT / "docs" / "protocol.md"
QUOTED = re.compile(r"\b(?:R1?[0-9]|I1?[0-9]|L[1-9]|W[1-9]?[0-9])\b")


def test_the_table_is_that_of_the_pages() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert MARK in text
    assert text == updated(text), "run `python -m raylog.protocol.documents.page docs/protocol.md`"


def test_every_rule_that_is_quoted_stands_on_the_page() -> None:
    stated = set(re.findall(r"^\| ([A-Z][0-9]+) \|", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {"R1", "R15", "I1", "I16", "L1", "W1", "W91"} <= stated
    missing = {
        f"{path.relative_to(ROOT)} quotes {rule}"
        for path in files_in(*PACKAGES, *OTHERS)
        for rule in QUOTED.findall(path.read_text(encoding="utf-8"))
        if rule not in stated
    }
    assert not missing
