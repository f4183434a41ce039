"""Ray Data: topics as datasets, and datasets into topics; see raylog.data.read and raylog.data.write.

Both functions are imported on first use. A worker imports this package for its read task, and needs neither the
consumer nor the producer, whose import would take a fifth of a second.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raylog.data.reads import read
    from raylog.data.writes import write

__all__ = ["read", "write"]

_NEEDED = ("ray", "pyarrow", "numpy", "pandas")
"""What the extra `data` installs."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    missing = [needed for needed in _NEEDED if find_spec(needed) is None]
    if missing:
        raise ModuleNotFoundError(
            f"raylog.data needs {' and '.join(missing)}: run `pip install 'raylog[data]'`.", name=missing[0]
        )
    found = globals()[name] = getattr(import_module(f"{__name__}.{name}s"), name)
    return found
