"""Lay the packages out as they are installed, as links in build/import-tree, for tools that read folders.

An editable install maps `raylog.core` to the folder core/ with an import hook. Python follows the hook; mypy,
import-linter and other tools that look for folders do not. `make lint` and the layer test call this; it may be run
repeatedly. It writes only to build/import-tree.
"""

import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def package_folders(root: Path = ROOT) -> dict[str, Path]:
    """Import name to folder for every mapping in pyproject.toml's package-dir."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    mapping: dict[str, str] = project["tool"]["setuptools"]["package-dir"]
    return {name: root / folder for name, folder in mapping.items()}


def _link(place: Path, target: Path) -> None:
    """Make `place` a link to `target`; several runs at the same time must not trip over each other."""
    wanted = os.path.relpath(target, place.parent)
    if place.is_symlink() and os.readlink(place) == wanted:
        return
    fresh = place.with_name(f".{place.name}.{os.getpid()}")
    fresh.symlink_to(wanted)
    fresh.replace(place)


def build(root: Path = ROOT) -> Path:
    """Bring the tree up to date and return its folder, the one to put on a search path."""
    tree = root / "build" / "import-tree"
    links: dict[Path, Path] = {}
    for name, folder in package_folders(root).items():
        place = tree.joinpath(*name.split("."))
        if name == "raylog":
            # Other folders are linked into this one, so it is a real folder whose own entries are links.
            links |= {place / entry.name: entry for entry in sorted(folder.iterdir()) if entry.name != "__pycache__"}
        else:
            links[place] = folder
    for place, target in links.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        _link(place, target)
    for place in (tree / "raylog").iterdir():
        if place.is_symlink() and place not in links and not place.name.startswith("."):
            place.unlink(missing_ok=True)
    return tree


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
