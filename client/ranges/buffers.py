"""numpy's arrays in Arrow's memory, and Arrow's arrays of numbers and strings. Pure.

`pa.array` and `pa.scalar` load pandas, to know whether they are given some of its objects. That takes 0.2 s, and then
27 ms for each task of Spark, whose workers collect garbage after a task and walk through all that is loaded. Used by
strings.py, pieces.py, fillers.py and arrow.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa


def room_for(count: int, kind: Any) -> Any:
    """An array of numpy whose contents are not set yet, in memory of Arrow's pool.

    The pool keeps what is freed for the next batch. numpy gets large arrays from the system and gives them back, and
    the page faults of new memory then take as long as all that is done with a record.
    """
    size = count * np.dtype(kind).itemsize
    return np.frombuffer(pa.allocate_buffer(size), kind) if size else np.empty(0, kind)


def integers(found: Any, is_null: Any | None = None) -> Any:
    """An array of numpy's integers, which are not copied; null where `is_null` (of bool) says so."""
    kind = pa.from_numpy_dtype(found.dtype)
    return pa.Array.from_buffers(kind, len(found), [_validity(is_null), pa.py_buffer(np.ascontiguousarray(found))])


def texts(column: Sequence[bytes | None], kind: Any) -> Any:
    """An array of strings; `kind`: binary, or string for what is UTF-8."""
    rows = len(column)
    is_null = np.fromiter((item is None for item in column), bool, rows) if None in column else None
    filled = [b"" if item is None else item for item in column]
    ends = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, filled), np.int32, rows), out=ends[1:])
    return pa.Array.from_buffers(kind, rows, [_validity(is_null), pa.py_buffer(ends), pa.py_buffer(b"".join(filled))])


@lru_cache(maxsize=16)
def repeated(value: int | str, rows: int, kind: Any) -> Any:
    """An array of so many times the same; kept for the next range, a micro-batch's above all."""
    one = texts([value.encode()], pa.string()) if isinstance(value, str) else integers(np.array([value], np.int64))
    return pa.repeat(one.cast(kind)[0], rows)


def _validity(is_null: Any | None) -> Any:
    return None if is_null is None else pa.py_buffer(np.packbits(~is_null, bitorder="little"))
