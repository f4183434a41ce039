"""Makes numpy arrays in Arrow's memory, and Arrow arrays of numbers and strings without `pa.array`. Pure.

`pa.array` and `pa.scalar` load pandas, to check for its objects. That takes 0.2 s, and then 27 ms in each task of
Spark, whose workers collect garbage after a task and so visit all loaded objects. Used by strings.py, pieces.py,
fillers.py and arrow.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa


def room_for(count: int, kind: Any) -> Any:
    """A numpy array with undefined contents, in memory of Arrow's pool.

    The pool keeps freed memory for the next batch. numpy instead gets memory for large arrays from the system, and the
    page faults of new memory would take as long as all other work on the records.
    """
    size = count * np.dtype(kind).itemsize
    return np.frombuffer(pa.allocate_buffer(size), kind) if size else np.empty(0, kind)


def integers(found: Any, is_null: Any | None = None) -> Any:
    """An Arrow array of a numpy array of integers, without a copy; null where `is_null` (bools) is true."""
    kind = pa.from_numpy_dtype(found.dtype)
    return pa.Array.from_buffers(kind, len(found), [_validity(is_null), pa.py_buffer(np.ascontiguousarray(found))])


def texts(column: Sequence[bytes | None], kind: Any) -> Any:
    """An Arrow array of byte strings; `kind`: pa.binary(), or pa.string() if they are UTF-8."""
    rows = len(column)
    is_null = np.fromiter((item is None for item in column), bool, rows) if None in column else None
    filled = [b"" if item is None else item for item in column]
    ends = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, filled), np.int32, rows), out=ends[1:])
    return pa.Array.from_buffers(kind, rows, [_validity(is_null), pa.py_buffer(ends), pa.py_buffer(b"".join(filled))])


@lru_cache(maxsize=16)
def repeated(value: int | str, rows: int, kind: Any) -> Any:
    """An Arrow array with one value `rows` times; cached for the next ranges, such as those of a micro-batch."""
    one = texts([value.encode()], pa.string()) if isinstance(value, str) else integers(np.array([value], np.int64))
    return pa.repeat(one.cast(kind)[0], rows)


def _validity(is_null: Any | None) -> Any:
    return None if is_null is None else pa.py_buffer(np.packbits(~is_null, bitorder="little"))
