"""Texts and names are plain engineer's English: no word of the list in `language.py` is in the tree."""

import ast
from pathlib import Path

import pytest

from tests.unit.docs.documents import DOCUMENTS
from tests.unit.style.language import IGNORED_FILES, WORDS, check_document, check_module, found_in, texts_of
from tests.unit.style.sources import OTHERS, PACKAGES, ROOT, files_in

OTHER_DOCUMENTS = [ROOT / name for name in ("Makefile", "cluster.yaml", "pyproject.toml")]

SAMPLE = '''
"""Knocks where somebody is awaited, until nobody is."""
import x as told  # made anew for ever
class ReplicaGone:
    async def test_the_leader_is_asked(self, who):
        raise ValueError(f"{who} cannot be heard")
'''


@pytest.mark.parametrize("folder", [*PACKAGES, *OTHERS])
def test_modules_use_no_word_of_the_list(folder: str) -> None:
    paths = {path.relative_to(ROOT).as_posix(): path for path in files_in(folder)}
    chosen = [path for name, path in paths.items() if name not in IGNORED_FILES]
    breaches = [breach for path in chosen for breach in check_module(path)]
    assert not breaches, "\n".join(breaches)


def test_documents_use_no_word_of_the_list() -> None:
    breaches = [breach for document in [*DOCUMENTS, *OTHER_DOCUMENTS] for breach in check_document(document)]
    assert not breaches, "\n".join(breaches)


def test_words_are_found_in_docstrings_comments_messages_and_names() -> None:
    found = [
        (line, breach.split("`")[1]) for text in texts_of(ast.parse(SAMPLE), SAMPLE) for line, breach in found_in(text)
    ]
    expected = {(2, "Knocks"), (2, "somebody"), (2, "nobody"), (3, "told"), (3, "anew"), (3, "for ever")}
    assert set(found) == expected | {(4, "Gone"), (5, "asked"), (5, "who"), (6, "heard")}


def test_a_breach_names_file_line_word_and_replacement(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text("for one in ():\n    pass\n\n\ndef test_" + "x" * 65 + "():\n    'Touches nothing.'\n")
    loop, name, docstring = check_module(path)
    assert loop == "sample.py:1 `one` as a loop variable: name the item"
    assert name.startswith("sample.py:5 `test_x")
    assert name.endswith("has 70 characters: at most 69")
    assert docstring == "sample.py:6 `Touches nothing`: write `Pure.`"


@pytest.mark.parametrize(
    "fine", ["keeps them in line with it", "users who read", "a task", "tolerated", "basket", "tellurium"]
)
def test_ordinary_words_pass(fine: str) -> None:
    text = texts_of(ast.parse(repr(fine)), "")
    assert not [breach for part in text for breach in found_in(part)]


def test_every_pattern_of_the_list_can_match() -> None:
    samples = """nobody someone whoever tells asking said heard knock, in line, anew gone forever learnt
        touches nothing, wants to know, also those"""
    assert not [word.pattern.pattern for word in WORDS if not word.pattern.search(samples)]
