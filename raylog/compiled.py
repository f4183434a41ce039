"""Whether this process runs the hot modules compiled, and the finder that makes it so.

`make native` (or a wheel built with RAYLOG_COMPILE=1) puts extension modules, made by mypyc from the same sources, into
raylog/_native/, where Python does not look by itself. `raylog/__init__.py` calls `use()` before it imports any other
module of Raylog. Without that folder, or with RAYLOG_COMPILED=0, the modules are the .py files. A build from other
sources than the present ones is not used, with a warning. May touch: files of the installation, sys.meta_path.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

FOLDER = "_native"
STAMP = "built.txt"
"""File that describes the build: the interpreter's tag, then a line for each module, then one for each source."""
SWITCH = "RAYLOG_COMPILED"
"""Environment variable: 0 = ignore compiled modules, 1 = refuse to run without them; unset = use them if they fit."""


class _Finder:
    """Finds the compiled modules before Python's own finders find the .py files."""

    def __init__(self, folder: Path, names: frozenset[str]) -> None:
        self._folder = folder
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module that is not loaded yet; Python calls this on every finder on sys.meta_path."""
        if name not in self._names:
            return None
        place = str(self._folder / f"{name}.so")
        return spec_from_file_location(name, place, loader=ExtensionFileLoader(name, place))


def in_use() -> bool:
    """Whether this process uses the compiled modules."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def use() -> None:
    """From now on import the compiled modules instead of their .py files.

    Raises ImportError when RAYLOG_COMPILED=1 requires them and they are missing or do not fit this Python and its
    sources; without it, warns when they exist and do not fit.
    """
    wish = os.environ.get(SWITCH, "")
    folder = Path(__file__).resolve().parent / FOLDER
    if wish == "0" or in_use() or (wish != "1" and not folder.is_dir()):
        return
    reason, names = _examine(folder)
    if not reason:
        sys.meta_path.insert(0, _Finder(folder, names))
    elif wish == "1":
        raise ImportError(f"{SWITCH}=1, but {reason} Run `make native`, or set {SWITCH}=0.")
    else:
        warnings.warn(
            f"Raylog runs interpreted: {reason} Run `make native`, or `rm -r {folder}`.", RuntimeWarning, stacklevel=3
        )


def _examine(folder: Path) -> tuple[str, frozenset[str]]:
    """Why the compiled modules cannot be used (empty = they can), and their names."""
    try:
        lines = (folder / STAMP).read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"nothing is compiled in {folder}.", frozenset()
    names: list[str] = []
    for line in lines:
        kind, *words = line.split(" ")
        if kind == "python" and words != EXTENSION_SUFFIXES[:1]:
            return f"what is compiled is for {words[0]}, and this Python wants {EXTENSION_SUFFIXES[0]}.", frozenset()
        if kind == "module":
            names += words
        elif kind == "source" and words[1:] != fingerprint(folder.parent.parent / words[0]):
            return f"{words[0]} has changed since its package was compiled.", frozenset()
    return "", frozenset(names)


def fingerprint(source: Path) -> list[str]:
    """Size (bytes) and modification time (ns) of a source, to detect changes since the build; empty if missing."""
    try:
        found = source.stat()
    except FileNotFoundError:
        return []
    return [str(found.st_size), str(found.st_mtime_ns)]
