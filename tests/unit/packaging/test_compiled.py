"""Compiled with mypyc, the hot modules do what they do interpreted; where they are not up to date, sources run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raylog.compiled import FOLDER, STAMP
from tests.unit.style.sources import ROOT
from tools.native import missing, modules

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]

SUITE = [
    "tests/unit/rpc",
    "tests/unit/client/producer/test_producer.py",
    "tests/unit/client/producer/test_failures.py",
    "tests/unit/storage/batch",
    "tests/cluster/replication/test_replication.py",
]
"""What runs against the compiled modules: their unit tests that replace nothing inside them, and a cluster."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of everything as it is installed, with compiled modules. The compiler's quickest way is good enough."""
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("native")
    build = [sys.executable, "-m", "tools.native", "--into", str(folder), "--optimize", "0"]
    subprocess.run(build, cwd=ROOT, check=True, timeout=400)
    for name in ("tests", "benchmarks", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    shutil.copy2(ROOT / "pyproject.toml", folder)
    return folder


def run(tree: Path, *arguments: str, compiled: str = "1") -> subprocess.CompletedProcess[str]:
    """Run Python in that copy."""
    environ = {**os.environ, "RAYLOG_COMPILED": compiled, "PYTHONPATH": str(tree)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, timeout=300, check=False)


def test_the_compiled_modules_pass_the_tests_of_their_sources(tree: Path) -> None:
    ran = run(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *SUITE)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]


def test_every_listed_module_runs_compiled_and_can_be_switched_off(tree: Path) -> None:
    program = f"import importlib; print([importlib.import_module(name).__file__ for name in {modules()}])"
    assert run(tree, "-c", program).stdout.count(f"{FOLDER}/raylog") == len(modules())
    assert FOLDER not in run(tree, "-c", program, compiled="0").stdout


def test_modules_compiled_from_other_sources_are_reported_and_not_used(tree: Path) -> None:
    stamp = tree / "raylog" / FOLDER / STAMP
    before = stamp.read_text(encoding="utf-8")
    stamp.write_text(before + "source raylog/rpc/framing.py 1 1\n", encoding="utf-8")
    try:
        ran = run(tree, "-c", "import raylog.rpc.framing as framing; print(framing.__file__)", compiled="")
        assert ran.stdout.endswith("framing.py\n")
        assert "raylog/rpc/framing.py has changed since its package was compiled" in ran.stderr
        assert "make native" in run(tree, "-c", "import raylog").stderr
    finally:
        stamp.write_text(before, encoding="utf-8")


def test_only_the_asynchronous_producer_may_be_derived_from_compiled(tree: Path) -> None:
    program = "import raylog\nclass Mine(raylog.{}): pass\nMine.__new__(Mine)"
    assert "interpreted classes cannot inherit" in run(tree, "-c", program.format("Producer")).stderr
    assert run(tree, "-c", program.format("AsyncProducer")).returncode == 0
