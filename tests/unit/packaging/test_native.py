"""Nothing is compiled unless requested, and what is compiled then has nothing that mypyc would change.

`test_compiled.py` compiles it.
"""

import ast
import os

import pytest

from tests.unit.style.sources import ROOT
from tools.native import modules


def test_tests_run_the_sources() -> None:
    from raylog.client.producer import producer

    assert os.environ["RAYLOG_COMPILED"] == "1" or producer.__file__.endswith(".py")


@pytest.mark.parametrize("name", modules())
def test_a_compiled_module_has_no_class_that_mypyc_would_change(name: str) -> None:
    """It drops the keywords of a class, and leaves the `__init__` of a dataclass to the interpreter."""
    source = ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py")
    classes = [
        item for item in ast.walk(ast.parse(source.read_text(encoding="utf-8"))) if isinstance(item, ast.ClassDef)
    ]
    assert not [item.name for item in classes if item.keywords or "dataclass" in map(_name, item.decorator_list)]


def _name(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
