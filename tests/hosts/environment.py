"""The packages for `pip install` on a host without internet: this environment's libraries, and a wheel of Raylog.

Each host has a virtual environment of its own, into which `cluster.yaml` installs the wheel; the wheel's requirements
are there already, by links to the libraries that this process uses.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from tests.unit.style.sources import PACKAGES, ROOT

LIBRARIES: Final = Path("/srv/libraries")
"""Path of the links on a host."""
BUILD_TIMEOUT_S: Final = 180.0
SOURCES: Final = (*PACKAGES, "pyspark_raylog")
FILES: Final = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
SCRIPTS: Final = {
    "ray": "ray.scripts.scripts",
    "pip": "pip",
}


def site_packages() -> Path:
    """Where this environment has its libraries."""
    return Path(sysconfig.get_path("purelib"))


def link_libraries(folder: Path) -> None:
    """Fill a folder with links to every library but Raylog itself."""
    folder.mkdir(parents=True)
    own = {Path(file.parts[0]).name for file in importlib.metadata.distribution("raylog").files or ()}
    for entry in site_packages().iterdir():
        if entry.name not in own and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)


def make_environment(home: Path, place: Path) -> None:
    """Make the virtual environment ``raylog-venv`` below ``home``, which the host sees at ``place``."""
    folder, seen = home / "raylog-venv", place / "raylog-venv"
    interpreter = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    libraries = folder / "lib" / interpreter.name / "site-packages"
    libraries.mkdir(parents=True)
    (libraries / "libraries.pth").write_text(f"{LIBRARIES}\n")
    programs = folder / "bin"
    programs.mkdir()
    for name in ("python", "python3", interpreter.name):
        (programs / name).symlink_to(interpreter)
    (folder / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\ninclude-system-site-packages = false\n")
    for name, module in SCRIPTS.items():
        script = programs / name
        script.write_text(f"#!{seen}/bin/python\nimport runpy\nrunpy.run_module({module!r}, run_name='__main__')\n")
        script.chmod(0o755)


def build_wheel(folder: Path) -> Path:
    """Build the wheel, with the pinned versions beside it, as `make wheel` does; ``folder`` gets the sources' copy too.

    Returns the folder ``dist``, which `cluster.yaml` copies to the hosts.
    """
    sources, dist = folder / "sources", folder / "dist"
    for name in SOURCES:
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__", "_native"))
    for name in FILES:
        shutil.copy(ROOT / name, sources / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(dist), str(sources)], check=True, timeout=BUILD_TIMEOUT_S)
    shutil.copy(ROOT / "constraints.txt", dist)
    return dist
