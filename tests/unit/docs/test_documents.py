"""The documents say what is there: paths and functions exist, links lead somewhere, nothing private is in them."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from tests.unit.docs.documents import DOCUMENTS, anchors, links, name_of, prose
from tests.unit.style.sources import ROOT, parsed
from tools.machine_pictures import PICTURES, drawn

CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"^(?:[\w.-]+/)*[\w.-]+\.(?:py|toml|yaml|md|txt|svg)$|^(?:[\w.-]+/)+$")
PLACE = re.compile(r"^((?:[\w.-]+/)+[\w-]+\.py):([A-Za-z_][\w.]*)$")
MADE_LATER = {"broker/", "broker-1/", "controller/", "raylog-data/", "build/"}
"""Folders of a data directory, and that of builds, which a fresh clone does not have."""
REMOVED = {"tools/restart_time.py", "tools/spark_start.py"}
"""Tools that measured what a record states, and were removed later; records are not rewritten."""

PRIVATE = re.compile(r"/work/|/home/|/root/|/tmp/(?!ray/)")
BOASTS = re.compile(
    r"\b(?:blazing|seamless\w*|effortless\w*|powerful|robust\w*|cutting-edge|world-class|game-chang\w*|simply|"
    r"leverag\w+|state-of-the-art|lightning|rock-solid|delightful|best-in-class|enterprise-grade|production-ready)\b",
    re.IGNORECASE,
)
TOP_LEVEL = {path.name for path in ROOT.iterdir()}


def names_in(path: Path) -> set[str]:
    """Functions, classes, and methods as Class.method, of a Python file."""
    found: set[str] = set()
    for node in parsed(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}.{item.name}" for item in inner}
    return found


def spans(document: Path) -> list[str]:
    """Everything between backticks in a document's prose."""
    return [found[1] for found in CODE.finditer(prose(document.read_text(encoding="utf-8")))]


def is_function(file: str, name: str) -> bool:
    """Whether there is such a function, class or method."""
    path = ROOT / file
    return path.exists() and name in names_in(path)


def of_all(found_in: Callable[[Path], Iterable[str]]) -> str:
    """What is found in any of the documents, a line each."""
    return "\n".join(f"{name_of(document)}: {found}" for document in DOCUMENTS for found in found_in(document))


def test_every_function_that_is_named_exists() -> None:
    def missing(document: Path) -> Iterator[str]:
        places = [place for span in spans(document) if (place := PLACE.match(span))]
        return (place[0] for place in places if not is_function(place[1], place[2]))

    assert not of_all(missing)


def test_every_path_that_is_named_exists() -> None:
    def missing(document: Path) -> list[str]:
        named = {span for span in spans(document) if PATH.match(span) and span not in MADE_LATER}
        if document.parent.name == "adr":
            named -= REMOVED
        # A bare name such as `meta.properties` or `ray.json` may be a file that a cluster writes; a folder says which.
        ours = {span for span in named if "/" in span or span in TOP_LEVEL}
        return sorted(span for span in ours if not (ROOT / span).exists() and not (document.parent / span).exists())

    assert not of_all(missing)


def test_every_feature_for_kafka_users_names_a_test() -> None:
    _, _, features = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8").partition("\n### ")
    tables = [block.splitlines() for block in features.split("\n\n") if "| shown by |" in block]
    rows = [line for table in tables for line in table if line.startswith("| ") and "| shown by |" not in line]
    assert len(rows) > 20
    for row in rows:
        places = [PLACE.match(span[1]) for span in CODE.finditer(row.rstrip(" |").rsplit("|", 1)[-1])]
        tests = [place[2] for place in places if place is not None and place[1].startswith("tests/")]
        assert any(name.split(".")[-1].startswith("test_") for name in tests), f"no test shows this: {row}"


def test_every_feature_beside_other_systems_names_a_test() -> None:
    text = (ROOT / "docs" / "time-and-queues.md").read_text(encoding="utf-8")
    _, _, compared = text.partition("## Beside other systems")
    rows = [line for line in compared.splitlines() if line.startswith("| ") and "| shown by |" not in line]
    assert len(rows) > 10
    assert all(re.search(r"`tests/[^`]+:test_\w+` \|$", row) for row in rows)


def test_the_pictures_of_machines_are_as_drawn() -> None:
    paths = {name: ROOT / "docs" / "img" / f"{name}.svg" for name in PICTURES}
    old = [name for name, path in paths.items() if path.read_text(encoding="utf-8") != drawn(PICTURES[name])]
    assert not old, "run `python -m tools.machine_pictures`"
    desc = "{http://www.w3.org/2000/svg}desc"
    assert not [name for name, path in paths.items() if ElementTree.parse(path).getroot().find(desc) is None]


def test_the_architecture_page_names_functions_in_every_layer() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    layers = {found[1].split("/")[0] for found in CODE.finditer(text) if PLACE.match(found[1])}
    assert layers == {"actors", "client", "core", "outbox", "rpc", "spark", "storage"}


def test_every_link_leads_somewhere() -> None:
    def broken(document: Path) -> Iterator[str]:
        for link in links(document.read_text(encoding="utf-8")):
            if "://" in link:
                continue
            target, _, anchor = link.partition("#")
            path = (document.parent / target).resolve() if target else document
            if not path.exists() or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
                yield link

    assert not of_all(broken)


def test_documents_name_no_private_path_and_do_not_boast() -> None:
    texts = {document: document.read_text(encoding="utf-8") for document in DOCUMENTS}
    assert not of_all(lambda document: PRIVATE.findall(texts[document]))
    assert not of_all(lambda document: BOASTS.findall(prose(texts[document])))


def test_the_picture_is_sound_and_brings_its_own_background() -> None:
    root = ElementTree.parse(ROOT / "docs" / "architecture.svg").getroot()
    name = "{http://www.w3.org/2000/svg}"
    first = root.find(f"{name}rect")
    assert root.find(f"{name}title") is not None
    assert first is not None
    assert first.get("fill") not in (None, "none"), "without a background of its own it is unreadable on dark pages"


def test_the_version_in_the_changelog_is_ours() -> None:
    import raylog

    assert f"\n## {raylog.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
