"""Which record was sent last under a name. Owned by the machine. Pure.

A name is that of a schedule id in a target topic. Keys that are in no run have theirs in memory, for those in runs the
runs are searched: the newest one that has the name is right, because a key is replaced by a later one while it is in
memory or in an earlier run. Whether the key that is found still waits, the machine knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from raylog.core.scheduling.naming.column import filter_bytes, may_hold
from raylog.core.scheduling.pending import Pending
from raylog.core.scheduling.runs import ReadBlock, Run

FILTERS_BYTES: Final = 32 * 1024 * 1024
"""Filters of runs that are kept in memory, the newest; of an older run's filter a few bytes are read."""
DELIVERED_REMEMBERED: Final = 10_000
"""Names whose records were delivered last, for requests that come after that."""
REPLACED_REMEMBERED: Final = 1_000
"""Records with names whose answer is remembered: a producer that repeats a request repeats one of the last."""


class Names:
    """The names of a partition of ``__scheduled``.

    Invariant: of the keys under one name that were in no batch one at most waits, and ``waiting`` returns it. What it
    returns depends on the log alone; ``find`` also knows what this owner remembers.
    """

    def __init__(self, pending: Pending, read: ReadBlock) -> None:
        """``pending`` has the runs, ``read`` returns a part of one."""
        self._pending = pending
        self._read = read
        self._keys: dict[int, int] = {}
        """By names, as far as the keys are in no run; those that were cancelled too, while that is remembered."""
        self._names: dict[int, int] = {}
        """The other way round."""
        self._delivered: dict[int, int] = {}
        self._filters: dict[int, bytes] = {}
        """Of runs with names, by their offsets; those of the newest, since a name was first searched in them."""
        self._filters_bytes = 0
        self.replaced: dict[int, bool] = {}
        """Of the last records with names, by offset: whether an earlier one was waiting under the name."""
        self.replaced_count = 0
        """Since this leadership began."""

    def waiting(self, name: int, taken: Collection[int]) -> int | None:
        """Return the key that a record under the same name replaces, if that waits; ``taken``: keys on their way."""
        key = self._keys.get(name)
        if key is None:
            key = self._in_runs(name)
            if key is not None and key <= self._pending.frontier and key not in taken:
                return None
        return key

    def find(self, name: int) -> int | None:
        """Return the last key under a name; None = nothing is known of the name."""
        key = self._keys.get(name)
        if key is None:
            key = self._delivered.get(name)
        return self._in_runs(name) if key is None else key

    def name_of(self, key: int) -> int:
        """Return the name of a key that is in no run; 0 = it has none."""
        return self._names.get(key, 0)

    @property
    def of_keys(self) -> Mapping[int, int]:
        """The names of keys that are in no run."""
        return self._names

    def _in_runs(self, name: int) -> int | None:
        for offset, run in reversed(self._pending.runs.items()):
            if run.facts.names == 0:
                continue
            bits = self._filters.get(offset) or self._kept_filter(run)
            if not (may_hold(bits.__getitem__, len(bits), name) if bits else run.may_name(name, self._read)):
                continue
            key = run.key_of(name, self._read)
            if key is not None:
                return key
        return None

    # ------------------------------------------------------------ what comes and goes

    def set(self, name: int, key: int) -> None:
        """Note the last key under a name."""
        before = self._keys.get(name)
        if before is not None:
            del self._names[before]
        self._delivered.pop(name, None)
        self._keys[name] = key
        self._names[key] = name

    def answer(self, offset: int, *, is_replaced: bool) -> None:
        """Remember whether a record has replaced one."""
        self.replaced[offset] = is_replaced
        self.replaced_count += is_replaced
        if len(self.replaced) > REPLACED_REMEMBERED:
            del self.replaced[next(iter(self.replaced))]

    def parked(self, keys: Sequence[int], names: Sequence[int]) -> None:
        """Note the names of keys that are due and wait: their run may be exhausted before they leave."""
        for key, name in zip(keys, names, strict=False):
            if name:
                self.set(name, key)

    def delivered(self, keys: Iterable[int]) -> None:
        """Keys are on the way to their targets."""
        for key in keys if self._names else ():
            name = self._names.pop(key, 0)
            if name:
                del self._keys[name]
                self._delivered[name] = key
                if len(self._delivered) > DELIVERED_REMEMBERED:
                    del self._delivered[next(iter(self._delivered))]

    def forget(self, keys: Iterable[int]) -> None:
        """Keys are in a run now, or were cancelled long ago."""
        for key in keys if self._names else ():
            name = self._names.pop(key, 0)
            if name:
                del self._keys[name]

    # ------------------------------------------------------------ runs

    def _kept_filter(self, run: Run) -> bytes:
        """Read the filter of a run, and keep it; empty where memory is for those of newer runs.

        Filters are not read before a name is searched: a new owner with many runs delivers first.
        """
        size = filter_bytes(run.facts.names)
        if self._filters_bytes + size > FILTERS_BYTES:
            for offset in self._filters.keys() - self._pending.runs.keys():
                self._drop_filter(offset)
            while self._filters_bytes + size > FILTERS_BYTES:
                oldest = min(self._filters, default=run.offset)
                if oldest >= run.offset:
                    return b""
                self._drop_filter(oldest)
        bits = self._filters[run.offset] = run.filter(self._read)
        self._filters_bytes += size
        return bits

    def _drop_filter(self, offset: int) -> None:
        self._filters_bytes -= len(self._filters.pop(offset))

    # ------------------------------------------------------------ checkpoints

    def state(self) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, bool], ...]]:
        """Return what a checkpoint keeps: names and keys, and answers."""
        return tuple(self._keys.items()), tuple(self.replaced.items())

    def restore(self, named: Iterable[tuple[int, int]], replaced: Iterable[tuple[int, bool]]) -> None:
        """Begin with what a checkpoint holds."""
        self._keys = dict(named)
        self._names = {key: name for name, key in self._keys.items()}
        self.replaced = dict(replaced)
