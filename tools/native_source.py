"""Source changes that mypyc needs, made in copies of the modules that it compiles.

Line by line, so that tracebacks of compiled code name the lines of the true sources. `tools/native.py` calls this.

- A dataclass gets its `__init__` written out. mypyc leaves the making of it to `dataclasses`, and it would be an
  interpreted function. `slots` goes, as a compiled class has nothing else, and `frozen` becomes hashable, as in
  `core/values.py`: type checkers have refused assignments before anything is compiled.
- Classes that users may derive from are marked as such.
"""

from __future__ import annotations

import ast

OPEN_CLASSES = {"AsyncProducer", "Producer"}
"""Public classes in compiled modules; from any other an interpreted class cannot be derived."""
_MARK = "@mypyc_attr(allow_interpreted_subclasses=True)"
_IMPORT = "if typing.TYPE_CHECKING: from mypy_extensions import mypyc_attr"
_FUTURE = "from __future__ import annotations"


class CannotCompile(Exception):
    """The module contains code that mypyc accepts silently and compiles to something else."""


def prepared(text: str) -> str:
    """The source of a module for mypyc. Raises CannotCompile."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and node.orelse:
            lines[node.lineno - 1] = "if True:"  # of the two dataclasses, the one that mypyc knows
            for other in node.orelse:
                lines[other.lineno - 1] = " " * other.col_offset + "pass"
        elif isinstance(node, ast.ClassDef):
            _prepare_class(node, lines)
    if _MARK in lines:
        future = lines.index(_FUTURE)
        lines[future : future + 2] = [f"{_FUTURE}; import typing", _IMPORT]
    return "\n".join(lines) + "\n"


def _prepare_class(node: ast.ClassDef, lines: list[str]) -> None:
    if node.keywords:  # of msgspec.Struct, for one
        raise CannotCompile(f"mypyc drops the keywords of class {node.name}: move it to a module that is interpreted.")
    if node.name in OPEN_CLASSES:
        _into_empty_line(lines, node.lineno - 2, _MARK)
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(called, ast.Name) and called.id == "dataclass":
            options = _constants(decorator)
            kept = [f"kw_only={options.get('kw_only', False)}", f"unsafe_hash={options.get('frozen', False)}"]
            lines[decorator.lineno - 1] = f"@dataclass(init=False, {', '.join(kept)})"
            assert node.end_lineno is not None
            _into_empty_line(lines, node.end_lineno, "    " + _written_out(node, kw_only=bool(options.get("kw_only"))))


def _constants(decorator: ast.expr) -> dict[str | None, object]:
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    return {keyword.arg: keyword.value.value for keyword in keywords if isinstance(keyword.value, ast.Constant)}


def _written_out(node: ast.ClassDef, *, kw_only: bool) -> str:
    """The `__init__` of a dataclass, in one line."""
    parameters, steps = ["self"] + ["*"] * kw_only, []
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        name, kind, default = field.target.id, ast.unparse(field.annotation), field.value
        if kind.startswith("ClassVar"):
            continue
        value = name
        if isinstance(default, ast.Call) and ast.unparse(default.func) == "field":
            made = ast.unparse(next(keyword.value for keyword in default.keywords if keyword.arg == "default_factory"))
            parameters.append(f"{name}: {kind} | None = None")
            value = f"{made}() if {name} is None else {name}"
        else:
            parameters.append(f"{name}: {kind}" + (f" = {ast.unparse(default)}" if default is not None else ""))
        steps.append(f"self.{name} = {value}")
    if any(isinstance(item, ast.FunctionDef) and item.name == "__post_init__" for item in node.body):
        steps.append("self.__post_init__()")
    return f"def __init__({', '.join(parameters)}) -> None: " + ("; ".join(steps) or "pass")


def _into_empty_line(lines: list[str], index: int, text: str) -> None:
    """Put text where the formatter has left a line empty; behind the last line there is one always."""
    if index == len(lines):
        lines.append("")
    if lines[index]:
        raise CannotCompile(f"Line {index + 1} is not empty, where {text!r} has to go.")
    lines[index] = text
