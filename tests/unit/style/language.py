"""The word list: words that are not used here, and where the style test looks for them.

Components are not persons: a request is received, a state is reported, a process has stopped. Names are read like
prose: `wait_until_ready` is "wait until ready" to the patterns.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.unit.style.sources import ROOT, parsed


@dataclass(frozen=True, slots=True)
class Word:
    """A pattern that matches a word or phrase, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str


def _word(pattern: str, instead: str) -> Word:
    return Word(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), instead)


# This file and its test quote the words; `IGNORED_FILES` leaves them out.
WORDS = (
    _word(r"nobody|no[ -]one", "the component: `no replica`, `no client`; or the passive"),
    _word(r"(?:some|any|every)(?:body|one)", "the component: `a client`, `any replica`, `all members`"),
    _word(r"who|whom|whoever", "`which` or `that` after the component's name"),
    _word(r"told|tells?|telling", "`sent`, `notified` / `reports`, `shows`; `distinguished`"),
    _word(r"ask(?:s|ed|ing)?", "`request`, `query`, `call`, `requested`"),
    _word(r"said|saying", "`reported`, `stated`, `logged`"),
    _word(r"hears?|heard|hearing", "`receives`, `received`, `was notified`"),
    _word(r"knock(?:s|ed|ing)?", "`probe`"),
    _word(r"in\s+line(?!\s+with)", "`queued`, `in flight`; `on line 5` of a file"),
    _word(r"anew", "`again`, `from scratch`"),
    _word(r"gone", "`deleted`, `lost`, `stopped`, `missing`; `does not exist`"),
    _word(r"for\s?ever", "`indefinitely`, `permanently`, `without a limit`"),
    _word(r"learnt", "`learned`"),
    _word(r"touch(?:es)?\s+nothing", "`Pure.`"),
    _word(r"wants?\s+to\s+know", "`queries`, `requests`"),
    _word(r"also\s+those", "`including those`"),
)

PEOPLE = re.compile(
    r"\b(?:users?|readers?|operators?|engineers?|developers?|attackers?|persons?)\s+who(?:m|ever)?\b", re.I
)
"""People are "who"."""

IGNORED_FILES = {"tests/unit/style/language.py", "tests/unit/style/test_language.py"}
"""The list itself and its samples."""

LONGEST_TEST_NAME = 69
TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
ONE = re.compile(r"\bfor\b.*\bone\b.*\bin\b")


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text that a reader sees: its first and last line, and its words."""

    line: int
    last_line: int
    words: str


def as_prose(name: str) -> str:
    """A name as words: `_on_replicaGone` is "on replica Gone"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").strip()


def _defined(node: ast.AST) -> list[str]:
    """The names that a node defines: of a function, class, parameter, variable, attribute or alias."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
        case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            return [name]
        case _:
            return []


def texts_of(tree: ast.Module, source: str) -> Iterator[Text]:
    """Docstrings, messages (string literals with a space), comments, and the names that a module defines."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        line, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        match node:
            case ast.JoinedStr(values=values):
                words = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in values)
                yield Text(line, last, words)
            case ast.Constant(value=str(words)) if " " in words and id(node) not in parts:
                yield Text(line, last, words)
            case _:
                yield from (Text(line, line, as_prose(name)) for name in _defined(node))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.start[0], token.string)


def found_in(text: Text) -> Iterator[tuple[int, str]]:
    """The line of each word of the list in a text, and the word with its replacement."""
    words = PEOPLE.sub("", text.words)
    for word in WORDS:
        for hit in word.pattern.finditer(words):
            line = min(text.line + words.count("\n", 0, hit.start()), text.last_line)
            yield line, f"`{hit[0]}`: write {word.instead}"


def loops_over_one(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Loops and comprehensions whose variable is called `one`."""
    targets = [node.target for node in ast.walk(tree) if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension)]
    for target in targets:
        if any(isinstance(part, ast.Name) and part.id == "one" for part in ast.walk(target)):
            yield target.lineno, "`one` as a loop variable: name the item"


def long_test_names(source: str) -> Iterator[tuple[int, str]]:
    """Tests whose name is longer than a line of a report shows."""
    for hit in TEST.finditer(source):
        if len(hit[1]) > LONGEST_TEST_NAME:
            line = source.count("\n", 0, hit.start(1)) + 1
            yield line, f"`{hit[1]}` has {len(hit[1])} characters: at most {LONGEST_TEST_NAME}"


def check_module(path: Path) -> list[str]:
    """Every breach in a Python file, as "file:line message", in the order of its lines."""
    source = path.read_text(encoding="utf-8")
    found = [(1, breach) for _, breach in found_in(Text(1, 1, as_prose(path.stem)))]
    found += long_test_names(source)
    if any(word.pattern.search(as_prose(source)) for word in WORDS):  # else there is no need to look closer
        found += [breach for text in texts_of(parsed(path), source) for breach in found_in(text)]
    if ONE.search(source):
        found += loops_over_one(parsed(path))
    return _listed(path, found)


def check_document(path: Path) -> list[str]:
    """Every breach in a document, code blocks included, as "file:line message"."""
    source = path.read_text(encoding="utf-8")
    return _listed(path, list(found_in(Text(1, source.count("\n") + 1, source))))


def _listed(path: Path, found: list[tuple[int, str]]) -> list[str]:
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    return [f"{name}:{line} {breach}" for line, breach in sorted(set(found))]
