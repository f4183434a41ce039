"""No module or folder imports, directly or through others, one that imports it; imports for type checkers count."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from tests.unit.style.sources import PACKAGES, ROOT, files_in, imports_of, module_name


def imported() -> dict[str, set[str]]:
    """What each module imports of the product. An `__init__.py` passes names of its folder on, and is left out."""
    files = {module_name(path): path for path in files_in(*PACKAGES)}
    return {
        name: {found.module for found in imports_of(path) if found.module in files and found.module != name}
        for name, path in files.items()
        if path.name != "__init__.py"
    }


def circle(arrows: dict[str, set[str]]) -> str:
    """One circle, or nothing: each is imported by the next."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return " <- ".join(error.args[1])
    return ""


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not circle(imported())


def test_no_folders_import_each_other_in_a_circle() -> None:
    folder_of = {module_name(path): str(path.parent.relative_to(ROOT)) for path in files_in(*PACKAGES)}
    arrows: dict[str, set[str]] = {}
    for name, targets in imported().items():
        folder = folder_of[name]
        arrows.setdefault(folder, set()).update({folder_of[target] for target in targets} - {folder})
    assert not circle(arrows)
