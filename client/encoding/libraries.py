"""pyarrow and numpy, imported on first use: a client without Arrow columns does not load them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Library:
    """Stands for a module, which is imported when an attribute is used. Raises ImportError if it is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(self._name), attribute)
        setattr(self, attribute, found)
        return found


np: Any = _Library("numpy")
pa: Any = _Library("pyarrow")
