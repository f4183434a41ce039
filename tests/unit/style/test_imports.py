"""The import rule: which folder may know which. import-linter also sees indirect imports; this one is readable."""

import ast
import sys

import pytest

from tests.unit.style.sources import (
    ARROW_READERS,
    HEAVY_AT_IMPORT,
    OTHERS,
    PACKAGES,
    ROOT,
    Import,
    files_in,
    imports_of,
    parsed,
)

MAY_IMPORT = {
    "base": {"base"},
    "storage": {"storage", "base"},
    "rpc": {"rpc", "base"},
    "protocol": {"protocol", "base"},
    "core": {"core", "protocol", "base"},
    "client": {"client", "protocol", "rpc", "core", "storage", "base"},
    "actors": {"actors", "protocol", "core", "storage", "rpc", "client", "base"},
    "data": {"data", "client", "protocol", "core", "base"},
    "outbox": {"outbox", "client", "core", "base"},
    "spark": {"spark", "client", "protocol", "core", "base"},
}
"""A folder's own packages and those below it; raylog/, the public face, may import all."""

CLIENT_MAY_USE_OF_STORAGE = {"batch", "errors"}
"""A client reads and writes batches; it has no business with files."""

IMPURE = {
    *("asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select"),
    *("selectors", "signal", "socket", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "uuid"),
}
"""What would give the core a clock, chance, files, sockets, threads or a log."""


def layer_of(module: str) -> str | None:
    """Which of our folders a module name belongs to: None for a third party, "raylog" for the public face."""
    parts = module.split(".")
    if parts[0] != "raylog":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "raylog"


def is_of(module: str, packages: set[str]) -> bool:
    """Whether a module is one of these packages, named without `raylog`, or lies in one."""
    return any(f"{module}.".startswith(f"raylog.{package}.") for package in packages)


def is_only_a_parent(found: Import, all_of_file: list[Import]) -> bool:
    """`from raylog import spark` is seen as raylog and as raylog.spark; the longer name is the one that counts."""
    return found.module == "raylog" and any(
        other.line == found.line and layer_of(other.module) not in (None, "raylog") for other in all_of_file
    )


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_a_folder_imports_only_what_lies_below_it(folder: str) -> None:
    broken = []
    for path in files_in(folder):
        found = list(imports_of(path))
        broken += [
            str(entry)
            for entry in found
            if layer_of(entry.module) not in {None, *MAY_IMPORT[folder]}
            and not is_of(entry.module, MAY_IMPORT[folder])
            and not is_only_a_parent(entry, found)
        ]
    assert not broken, "\n".join(broken)


def test_the_client_uses_of_storage_only_the_batch_format() -> None:
    broken = [
        str(found)
        for path in files_in("client")
        for found in imports_of(path)
        if found.module.startswith("raylog.storage.") and found.module.split(".")[2] not in CLIENT_MAY_USE_OF_STORAGE
    ]
    assert not broken, "\n".join(broken)


def test_core_and_base_import_only_pure_parts_of_the_standard_library() -> None:
    broken = [
        str(found)
        for path in files_in("base", "core")
        for found in imports_of(path)
        if layer_of(found.module) is None
        and (found.module.split(".")[0] in IMPURE or found.module.split(".")[0] not in sys.stdlib_module_names)
    ]
    assert not broken, "\n".join(broken)


def test_the_core_never_walks_a_set_in_its_accidental_order() -> None:
    def is_set(node: ast.expr) -> bool:
        made = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
        return made or isinstance(node, ast.Set | ast.SetComp)

    broken = [
        f"{path.relative_to(ROOT)}:{node.iter.lineno} walks a set: sort it first"
        for path in files_in("core")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.For | ast.comprehension) and is_set(node.iter)
    ]
    assert not broken, "\n".join(broken)


def test_only_spark_and_ray_data_load_the_readers_into_arrow() -> None:
    broken = [
        str(found)
        for path in files_in("client", "rpc", "storage", "raylog", "actors")
        if not path.is_relative_to(ARROW_READERS)
        for found in imports_of(path)
        if found.at_module_level and is_of(found.module, {"client.ranges"})
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("folder", ["client", "rpc", "storage"])
def test_nothing_heavy_is_imported_together_with_a_light_package(folder: str) -> None:
    broken = [
        str(found)
        for path in files_in(folder)
        if not path.is_relative_to(ARROW_READERS)
        for found in imports_of(path)
        if found.at_module_level and found.module.split(".")[0] in HEAVY_AT_IMPORT
    ]
    assert not broken, "\n".join(broken)


def test_no_file_imports_a_folder_by_its_bare_name() -> None:
    bare = set(PACKAGES) - {"raylog"}
    broken = [
        f"{found}: that would load a second copy of raylog.{found.module}"
        for path in files_in(*PACKAGES, *OTHERS)
        for found in imports_of(path)
        if found.module.split(".")[0] in bare
    ]
    assert not broken, "\n".join(broken)
