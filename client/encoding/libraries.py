"""pyarrow and numpy, imported on first use: a client that sends no Arrow columns does not pay for them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Library:
    """Stands for a module; its first attribute imports it. Raises ImportError where it is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(self._name), attribute)
        setattr(self, attribute, found)
        return found


np: Any = _Library("numpy")
pa: Any = _Library("pyarrow")
