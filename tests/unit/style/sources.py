"""The project's own Python files, and what they import; used by the style tests, which read files and run nothing."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("actors", "base", "client", "core", "data", "outbox", "protocol", "raylog", "rpc", "spark", "storage")
OTHERS = ("benchmarks", "examples", "pyspark_raylog", "tests", "tools")
HEAVY_AT_IMPORT = {"numpy", "pandas", "pyarrow", "pyspark", "ray", "raydp"}
"""What a service that only produces and consumes, and a replica's process, must not load."""
ARROW_READERS = ROOT / "client" / "ranges"
"""For Spark and Ray Data, which have pyarrow loaded; the rest of the client imports it in functions only."""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module of one file: where, what, and whether it happens as soon as the file is imported."""

    path: Path
    line: int
    module: str
    at_module_level: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.module}"


def files_in(*folders: str) -> list[Path]:
    """Every Python file under the top-level folders named, in a stable order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file, read once a run."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def module_name(path: Path) -> str:
    """The name a file is imported by: base/ids.py is raylog.base.ids."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts if parts[0] in ("raylog", *OTHERS) else ["raylog", *parts])


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _walk(node: ast.AST, at_module_level: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_type_checking(child)
        yield child, at_module_level
        yield from _walk(child, at_module_level and not deferred)


def imports_of(path: Path) -> Iterator[Import]:
    """Every import of a file, `from a import b` as both a and a.b, because b may be a module."""
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node, top in _walk(parsed(path), True):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name, top)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join(parents[: len(parents) - node.level + 1] + ([base] if base else []))
            yield Import(path, node.lineno, base, top)
            for alias in node.names:
                yield Import(path, node.lineno, f"{base}.{alias.name}", top)
