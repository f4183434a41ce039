"""No module imports, directly or through others, a module that imports it; imports for type checkers count."""

from __future__ import annotations

from tests.unit.style.sources import PACKAGES, files_in, imports_of, module_name


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = {module_name(path): path for path in files_in(*PACKAGES)}
    arrows = {
        name: {found.module for found in imports_of(path) if found.module in files and found.module != name}
        for name, path in files.items()
        if path.name != "__init__.py"
    }
    while leaves := [name for name, targets in arrows.items() if not targets & arrows.keys()]:
        for name in leaves:
            del arrows[name]
    assert not arrows, f"these modules import each other, or a module of a circle: {sorted(arrows)}"
