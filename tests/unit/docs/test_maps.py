"""The maps for developers say what is there, both ways: what they name exists, and every package is named."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.chaos.__main__ import _options as chaos_options
from tests.simulation.__main__ import _options as simulation_options
from tests.unit.docs.documents import blocks, check_each, links
from tests.unit.docs.test_documents import CODE, is_function
from tests.unit.style.sources import PACKAGES, ROOT, files_in
from tests.unit.style.test_imports import MAY_IMPORT

ARCHITECTURE = ROOT / "docs" / "architecture.md"
DEVELOPMENT = ROOT / "docs" / "development.md"
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
MADE = "raylog/_native/"
"""What `make native` leaves in a checkout."""
LINES_MAX = 250
SUBJECTS = (
    *("delayed", "half message", "queue", "retry", "dead letter", "redrive", "outbox", "metrics", "lag", "transaction"),
    *("compacted", "damaged", "rebalance", "coordinator", "Spark task", "stream", "Ray Data", "token", "secret"),
    *("`raylog start`", "`raylog stop`", "leader", "60 MB"),
)
"""What symptoms are about; in whatever words, each has a row."""
COMMIT = re.compile(r"`([0-9a-f]{8})` ([a-z, ]+: [^\n]+?)\.?(?:\n|$)")


def first_cells(text: str) -> dict[str, str]:
    """Each folder that a row of a table begins with, and what the row says of it."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            first, says, *_ = line.strip("| ").split(" | ")
            found |= {span: says for span in CODE.findall(first) if span.endswith("/")}
    return found


def packages() -> set[str]:
    """Every folder with Python files of the product, those of tests, and the other top-level ones."""
    product = {
        f"{path.parent.relative_to(ROOT)}/"
        for top in (*PACKAGES, "pyspark_raylog")
        for path in (ROOT / top).rglob("*.py")
    }
    tests = {f"tests/{path.name}/" for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "_."}
    return (product - {MADE}) | tests | {"benchmarks/", "examples/", "tools/"}


def test_every_package_is_named_with_what_it_is_for() -> None:
    rows = first_cells(ARCHITECTURE.read_text(encoding="utf-8")) | first_cells(DEVELOPMENT.read_text(encoding="utf-8"))
    missing = packages() - {name for name, says in rows.items() if says}
    assert not missing, f"no row of docs/architecture.md or docs/development.md names {sorted(missing)}"


def test_every_folder_of_the_tree_is_a_package() -> None:
    _, _, tree = ARCHITECTURE.read_text(encoding="utf-8").partition("\n## The tree\n")
    named = first_cells(tree.partition("\n## ")[0])
    assert len(named) > 60
    assert not sorted(named.keys() - packages())


def test_a_symptom_of_each_subject_names_where_to_look() -> None:
    _, _, symptoms = ARCHITECTURE.read_text(encoding="utf-8").partition("\n## Where to look when\n")
    rows = [
        line.strip("| ").split(" | ", 1) for line in symptoms.partition("\n## ")[0].splitlines() if line[:2] == "| "
    ]

    def check(subject: str) -> None:
        places = [CODE.findall(files) for symptom, files in rows if subject in symptom]
        assert places, "no symptom is about it"
        assert all(any(span.endswith((".py", "/")) for span in found) for found in places)

    check_each(check, SUBJECTS)


def test_the_rooms_import_what_the_rule_allows() -> None:
    _, _, rooms = DEVELOPMENT.read_text(encoding="utf-8").partition("\n## Rooms\n")
    rows = first_cells(rooms.partition("\n## ")[0])
    stated = {name.rstrip("/"): set(CODE.findall(says)) for name, says in rows.items() if name != "raylog/"}
    assert stated == {name: allowed - {name} for name, allowed in MAY_IMPORT.items()}
    assert rows["raylog/"] == "everything"


def test_the_page_for_developers_is_short_and_linked() -> None:
    assert len(DEVELOPMENT.read_text(encoding="utf-8").splitlines()) <= LINES_MAX
    assert "docs/development.md" in set(links((ROOT / "README.md").read_text(encoding="utf-8")))


# ---------------------------------------------------------------- commands


def commands() -> list[str]:
    """The lines of the page that a developer types."""
    text = DEVELOPMENT.read_text(encoding="utf-8")
    return [line for block in blocks(text) if block.language == "bash" for line in block.text.splitlines()]


def module_of(name: str) -> Path:
    """The file that `python -m` runs."""
    place = ROOT.joinpath(*name.removeprefix("raylog.").split("."))
    return place / "__main__.py" if place.is_dir() else place.with_suffix(".py")


def check_make(words: list[str]) -> None:
    """A target of the Makefile, with variables that it reads, and arguments that the command takes."""
    target, *settings = words
    is_known = re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE)
    assert is_known or re.fullmatch(r"\.venv/\.installed-(?:test|bench)", target), target
    values = dict(setting.split("=", 1) for setting in settings)
    assert all(re.search(rf"\$\({name}\)", MAKEFILE) for name in values)
    if target == "simulate":
        simulation_options([word for name, value in values.items() for word in (f"--{name.lower()}", value)])
    if target == "chaos":
        chaos_options(shlex.split(values["CHAOS_ARGS"]))


def check_options(words: list[str], sources: list[Path]) -> None:
    """Options that some of these files define."""
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    assert not [word for word in words if word.startswith("--") and f'"{word}"' not in text]


def check_pytest(words: list[str]) -> None:
    """Files, folders and tests that are there."""
    for word in words:
        path, _, name = word.partition("::")
        assert (ROOT / path).exists(), word
        assert not name or is_function(path, name), word


def check_command(command: str) -> None:
    """A command that can be run as it stands."""
    program, *words = shlex.split(command.partition(" > ")[0])
    if program == "make":
        check_make(words)
        return
    assert program == ".venv/bin/python"
    assert words.pop(0) == "-m"
    module, *rest = words
    if module == "pytest":
        check_pytest(rest)
        return
    assert module_of(module).exists(), module
    if module == "tests.simulation":
        simulation_options(rest)
    if module == "benchmarks":
        check_options(rest, files_in("benchmarks"))


def test_each_command_of_the_page_is_one() -> None:
    check_each(check_command, commands())


def test_there_is_a_command_for_each_thing_that_is_run() -> None:
    typed = "\n".join(commands())
    for part in ("pytest tests/unit", "tests.simulation", "SHRINK=", "--planted", "-m benchmarks", "make chaos"):
        assert part in typed


# ---------------------------------------------------------------- commits


def test_the_commits_that_show_it_are_there() -> None:
    named = COMMIT.findall(DEVELOPMENT.read_text(encoding="utf-8"))
    assert len(named) >= 8
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("no history is here")
    subjects = {}
    for commit, _ in named:
        shown = subprocess.run(
            [git, "log", "-1", "--format=%s", commit], cwd=ROOT, capture_output=True, text=True, check=False
        )
        subjects[commit] = shown.stdout.strip()
    if not all(subjects.values()):
        shallow = subprocess.run(
            [git, "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        if shallow.stdout.strip() == "true":
            pytest.skip("the history is cut off")
    assert dict(named) == subjects
