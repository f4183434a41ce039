"""pyproject.toml, constraints.txt, the Makefile and CI say the same thing as the tree."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, packages_distributions, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import raylog
from tests.unit.style.sources import OTHERS, PACKAGES, ROOT, files_in, imports_of, module_name
from tools import import_tree

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)


def requirements(*wanted: str) -> list[Requirement]:
    """Every requirement of the project and of the extras named; of all that the tests install when none is."""
    extras: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
    lines = PYPROJECT["project"]["dependencies"] + [
        line for name in wanted or ("spark", "demo", "test") for line in extras[name]
    ]
    return [required for required in map(Requirement, lines) if required.name != "raylog"]


def test_every_folder_with_python_files_is_a_package_of_the_wheel() -> None:
    folders = {path.parent for path in files_in(*PACKAGES, "pyspark_raylog")}
    found = {module_name(folder / "__init__.py") for folder in folders}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found


def test_tools_that_read_folders_see_every_module() -> None:
    program = "import grimp; print(*grimp.build_graph('raylog', cache_dir=None).modules)"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=import_tree.build(), capture_output=True, text=True, check=True, timeout=60)
    assert {module_name(path) for path in files_in(*PACKAGES)} <= set(run.stdout.split())


def test_the_version_is_stated_once() -> None:
    assert PYPROJECT["project"]["version"] == raylog.__version__ == version("raylog")


def test_the_command_raylog_exists() -> None:
    (command,) = entry_points(group="console_scripts", name="raylog")
    assert callable(command.load())


@pytest.mark.parametrize(
    ("folders", "extras"),
    [
        (PACKAGES, ("spark", "outbox")),
        (("tests", "tools"), ("spark", "outbox", "demo", "test")),
        (("benchmarks",), ("spark", "outbox", "demo", "test", "bench")),
    ],
    ids=["packages", "tests", "benchmarks"],
)
def test_every_library_that_is_imported_is_declared(folders: tuple[str, ...], extras: tuple[str, ...]) -> None:
    builders = [Requirement(line) for line in PYPROJECT["build-system"]["requires"]]
    declared = {canonicalize_name(required.name) for required in [*requirements(*extras), *builders]}
    homes = packages_distributions()
    undeclared = [
        str(found)
        for path in files_in(*folders)
        for found in imports_of(path)
        if (root := found.module.split(".")[0]) not in {*sys.stdlib_module_names, *PACKAGES, *OTHERS}
        and not declared & {canonicalize_name(name) for name in homes.get(root, [])}
    ]
    assert not undeclared, "\n".join(undeclared)


def test_the_pinned_versions_are_inside_their_ranges_and_installed() -> None:
    required = requirements()
    pins = {each.name: PINS[canonicalize_name(each.name)] for each in required}
    assert not [str(each) for each in required if not each.specifier.contains(pins[each.name], prereleases=True)]
    assert {name: version(name) for name in pins} == pins


def test_each_extra_has_its_pins() -> None:
    """An extra that is installed for the tests or the benchmarks gets the versions that were tried."""
    extras = PYPROJECT["project"]["optional-dependencies"]
    named = {f"{extra}: {required.name}": required.name for extra in extras for required in requirements(extra)}
    missing = [where for where, name in named.items() if canonicalize_name(name) not in PINS]
    assert not missing, "run `make constraints` where these are installed"


def test_constraints_are_exact_versions_and_nothing_else() -> None:
    for name, pinned in PINS.items():
        assert re.fullmatch(r"[a-z0-9-]+", name)
        assert re.fullmatch(r"[A-Za-z0-9.!+]+", pinned)


def test_ci_calls_exactly_what_a_developer_calls() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "make" in line] == ["exec make test"]
    assert "set -euo pipefail" in lines


@pytest.mark.parametrize("target", ["demo", "test", "lint", "simulate", "bench", "wheel", "constraints", "clean"])
def test_make_knows_every_target_it_promises(target: str) -> None:
    run = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stderr


def test_make_says_in_one_sentence_that_python_is_too_old(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    old = tmp_path / "python-that-is-too-old"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    command = ["make", "--silent", f"VENV={venv}", f"PYTHON={old}", f"{venv}/bin/python"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode != 0
    assert "Raylog needs Python 3.11 or newer, and none was found" in run.stderr
    assert not venv.exists()
