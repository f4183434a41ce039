"""What the tests of the documents share: which documents there are, their links, headings and code blocks."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.unit.style.sources import ROOT

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])

RUN = "<!-- run -->"
"""The line before a block of a page that tests run as it is written."""
_FENCE = re.compile(r"^```(\w*)\s*$")
_LINK = re.compile(r"\]\(([^)\s]+)\)")

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of code: its language ("" = none named), its text, and the line of its opening fence."""

    language: str
    text: str
    line: int
    is_run: bool = False
    """Whether a comment before it says that tests run it."""


def blocks(text: str) -> list[Block]:
    """Every fenced block of a document, in order."""
    found: list[Block] = []
    begun: tuple[str, int] | None = None
    inside: list[str] = []
    before = ""
    is_run = False
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _FENCE.match(line)
        if fence and begun is None:
            begun, inside, is_run = (fence[1], number), [], before == RUN
        elif fence and begun is not None:
            found.append(Block(begun[0], "\n".join(inside) + "\n", begun[1], is_run))
            begun = None
        elif begun is not None:
            inside.append(line)
        before = line
    assert begun is None, f"the block on line {begun} is not closed"
    return found


def prose(text: str) -> str:
    """The document without its fenced blocks."""
    kept: list[str] = []
    is_code = False
    for line in text.splitlines():
        if _FENCE.match(line):
            is_code = not is_code
        elif not is_code:
            kept.append(line)
    return "\n".join(kept) + "\n"


def links(text: str) -> Iterator[str]:
    """Where the links and pictures of a document lead."""
    for found in _LINK.finditer(prose(text)):
        yield found[1]


def anchors(text: str) -> set[str]:
    """The anchors that a forge gives the headings of a document."""
    found = set()
    for line in prose(text).splitlines():
        if line.startswith("#"):
            title = line.lstrip("#").strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


def name_of(path: Path) -> str:
    """A document's path in the repository, for messages."""
    return path.relative_to(ROOT).as_posix()


def check_each(check: Callable[[Row], None], rows: Iterable[Row], name: Callable[[Row], str] = str) -> None:
    """Check every row of a document, and fail with all that are wrong, not with the first."""
    wrong = []
    for row in rows:
        try:
            check(row)
        except (AssertionError, OSError, SystemExit, ValueError) as error:
            wrong.append(f"{name(row)}: {error}")
    assert not wrong, "\n".join(wrong)
