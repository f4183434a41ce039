"""The decision records: their form, their numbers, which replace which, and the page that lists them by subject."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.unit.docs.documents import check_each, name_of
from tests.unit.style.sources import ROOT

FOLDER = ROOT / "docs" / "adr"
INDEX = FOLDER / "README.md"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
BY_NUMBER = {path.name[:4]: path for path in RECORDS}

UNUSED = re.compile(r"^Numbers that were reserved and not used: ((?:\d{4},?\s)*\d{4})\.$", re.MULTILINE)
ROW = re.compile(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+?)(?:\. \*\*(Replaced|In part replaced) by (.+)\.\*\*)? \|$")
LINK = re.compile(r"\[(\d{4})\]\(")
IS_REPLACED = re.compile(r"\breplaced by \[(\d{4})\]")


class Row(NamedTuple):
    """A record as the index has it."""

    heading: str
    number: str
    file: str
    title: str
    replaced: str
    """"Replaced", "In part replaced", or nothing."""
    by: tuple[str, ...]


def rows() -> list[Row]:
    """The index, line by line."""
    found, heading = [], ""
    for line in INDEX.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line
        elif line.startswith("| ["):
            row = ROW.match(line)
            assert row, f"not a row of the index: {line}"
            number, file, title, replaced, by = row.groups()
            found.append(Row(heading, number, file, title, replaced or "", tuple(LINK.findall(by or ""))))
    return found


def status_of(record: Path) -> str:
    """The paragraph below the title."""
    return " ".join(record.read_text(encoding="utf-8").split("\n\n")[1].split())


def test_each_decision_record_has_a_context_a_decision_and_consequences() -> None:
    def check(record: Path) -> None:
        text = record.read_text(encoding="utf-8")
        assert text.startswith(f"# {record.name[:4]}. ")
        assert re.match(r"Status: (?:accepted\b|replaced by )", status_of(record))
        headings = [line for line in text.splitlines() if line.startswith("## ")]
        assert headings == ["## Context", "## Decision", "## Consequences"]

    check_each(check, RECORDS, name_of)


def test_the_index_has_each_record_once_with_its_title() -> None:
    titles = {path.name: path.read_text(encoding="utf-8").splitlines()[0].split(". ", 1)[1] for path in RECORDS}
    assert sorted((row.number, row.file, row.title) for row in rows()) == sorted(
        (name[:4], name, title) for name, title in titles.items()
    )


def test_the_index_lists_records_under_subjects_in_their_order() -> None:
    subjects: dict[str, list[str]] = {}
    for row in rows():
        subjects.setdefault(row.heading, []).append(row.number)
    assert len(subjects) > 10
    assert "" not in subjects
    assert not {heading: numbers for heading, numbers in subjects.items() if numbers != sorted(numbers)}


def test_each_number_is_that_of_a_record_or_stated_as_unused() -> None:
    assert len(BY_NUMBER) == len(RECORDS), "two records have one number"
    stated = UNUSED.search(INDEX.read_text(encoding="utf-8"))
    assert stated
    unused = re.findall(r"\d{4}", stated[1])
    every = [f"{number:04}" for number in range(1, int(max(BY_NUMBER)) + 1)]
    assert sorted([*BY_NUMBER, *unused]) == every


def test_what_replaces_a_record_is_named_by_it_and_by_the_index() -> None:
    by_the_old = {(number, new) for number, path in BY_NUMBER.items() for new in IS_REPLACED.findall(status_of(path))}
    by_the_new = {
        (old, number)
        for number, path in BY_NUMBER.items()
        for sentence in status_of(path).split(". ")
        if " replaces " in sentence
        for old in LINK.findall(sentence)
    }
    in_the_index = {(row.number, new) for row in rows() for new in row.by}
    assert len(by_the_old) > 10
    assert by_the_old == by_the_new == in_the_index


def test_the_index_says_which_records_are_replaced_whole() -> None:
    whole = {number for number, path in BY_NUMBER.items() if status_of(path).startswith("Status: replaced by ")}
    assert {row.number for row in rows() if row.replaced == "Replaced"} == whole
    assert {"0003", "0029"} <= whole
