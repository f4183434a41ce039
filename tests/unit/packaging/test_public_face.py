"""`import raylog` gives every public name and loads next to nothing."""

import ast
import inspect
import json
import subprocess
import sys

import pytest

import raylog
from raylog.base import errors
from tests.unit.style.sources import ARROW_READERS, HEAVY_AT_IMPORT, ROOT, files_in, module_name

MODULES_MAX = 60
"""How many modules `import raylog` may add to a bare interpreter: a number that no large library stays under."""


def modules_after(statement: str) -> set[str]:
    """The modules of a fresh interpreter after one statement, without those it had before."""
    added = "print(json.dumps(sorted(set(sys.modules) - before)))"
    program = f"import json, sys\nbefore = set(sys.modules)\n{statement}\n{added}"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT.parent, capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(run.stdout))


def names_for_type_checkers() -> set[str]:
    """What raylog/__init__.py imports under TYPE_CHECKING."""
    tree = ast.parse(inspect.getsource(raylog))
    guarded = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name
        for block in guarded
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_importing_raylog_loads_no_large_library() -> None:
    loaded = modules_after("import raylog")
    assert not loaded & HEAVY_AT_IMPORT
    assert len(loaded) <= MODULES_MAX, sorted(loaded)


def test_importing_an_error_class_loads_no_large_library() -> None:
    assert not modules_after("import raylog; raylog.RaylogError") & HEAVY_AT_IMPORT


@pytest.mark.parametrize("folder", ["client", "rpc", "storage", "core", "base"])
def test_a_service_without_ray_can_import_all_of(folder: str) -> None:
    names = [module_name(path) for path in files_in(folder) if not path.is_relative_to(ARROW_READERS)]
    assert names
    assert not modules_after("\n".join(f"import {name}" for name in names)) & HEAVY_AT_IMPORT


@pytest.mark.parametrize(
    ("statement", "missing", "extra"),
    [
        ("import raylog; raylog.outbox", "sqlalchemy", "outbox"),
        ("from raylog.outbox import add", "sqlalchemy", "outbox"),
        ("import raylog; raylog.data.read", "pandas", "data"),
        ("import raylog; raylog.read", "pyarrow", "data"),
        ("from raylog.data import write", "pyarrow", "data"),
    ],
)
def test_a_package_without_its_extra_names_the_extra(statement: str, missing: str, extra: str) -> None:
    program = f"import sys\nsys.modules[{missing!r}] = None\n{statement}"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT.parent, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert f"pip install 'raylog[{extra}]'" in run.stderr.splitlines()[-1]


def test_the_errors_have_a_module_of_their_own() -> None:
    from raylog import errors as public

    assert set(errors.__all__) <= set(vars(public))
    assert public.OffsetOutOfRange is errors.OffsetOutOfRange


def test_type_checkers_see_every_public_name() -> None:
    assert names_for_type_checkers() | {"__version__"} == set(raylog.__all__)


def test_every_error_is_public() -> None:
    missing = set(errors.__all__) - set(raylog.__all__)
    assert not missing, f"name these in raylog/__init__.py, under TYPE_CHECKING and in __all__: {sorted(missing)}"


def test_every_public_name_can_be_had() -> None:
    assert not [name for name in raylog.__all__ if getattr(raylog, name, None) is None]


def test_a_public_name_is_the_same_object_as_at_its_home() -> None:
    assert raylog.OffsetOutOfRange is errors.OffsetOutOfRange


def test_dir_shows_names_that_were_not_imported_yet() -> None:
    assert set(raylog.__all__) <= set(dir(raylog))


def test_dir_shows_nothing_that_the_module_needs_itself() -> None:
    assert {name for name in dir(raylog) if not name.startswith("__")} <= set(raylog.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Prodcuer'"):
        raylog.Prodcuer  # type: ignore[attr-defined]  # noqa: B018
