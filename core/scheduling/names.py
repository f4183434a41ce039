"""Which record was sent last under a name. Owned by the machine. Pure.

A name stands for a schedule id in a target topic. The names of keys that are in no run are in memory; for the others
the runs are searched. The newest run that has the name is right, because a key is only replaced while it is in memory
or in an earlier run. The machine decides whether the key that is found still waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from raylog.core.scheduling.name_column import filter_bytes, may_hold
from raylog.core.scheduling.pending import Pending
from raylog.core.scheduling.runs import ReadBlock, Run

FILTERS_BYTES: Final = 32 * 1024 * 1024
"""Most bytes of runs' filters in memory, those of the newest runs; of another filter, each search reads a few bytes."""
DELIVERED_REMEMBERED: Final = 10_000
"""Most names of delivered records that are remembered, for requests that come after the delivery."""
REPLACED_REMEMBERED: Final = 1_000
"""Most records with names whose answer is remembered: a producer repeats only one of its latest requests."""


class Names:
    """The names of a partition of ``__scheduled``.

    Invariant: of the keys under one name that were in no batch, at most one waits, and ``waiting`` returns it. What
    ``waiting`` returns depends on the log alone; ``find`` also uses what this owner remembers.
    """

    def __init__(self, pending: Pending, read: ReadBlock) -> None:
        """``pending`` has the runs, ``read`` returns a part of one."""
        self._pending = pending
        self._read = read
        self._keys: dict[int, int] = {}
        """Key by name, of keys that are in no run; cancelled keys too, while their cancellation is remembered."""
        self._names: dict[int, int] = {}
        """Name by key, of the same keys."""
        self._delivered: dict[int, int] = {}
        """Key by name, of the records delivered last."""
        self._filters: dict[int, bytes] = {}
        """Filter by run offset, of the newest runs with names; read when a name is first searched in the run."""
        self._filters_bytes = 0
        self.replaced: dict[int, bool] = {}
        """Of the last records with names, by offset: whether the record replaced one that waited under its name."""
        self.replaced_count = 0
        """Since this leadership began."""

    def waiting(self, name: int, taken: Collection[int]) -> int | None:
        """Return the key that a new record of the name would replace; None = there is none, or it was delivered.

        The key may be cancelled: the caller checks that. ``taken``: keys that are in no round of the log yet.
        """
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

    @property
    def of_keys(self) -> Mapping[int, int]:
        """Name by key, of keys that are in no run."""
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
        """Remember whether the record at an offset replaced another, which is the answer to its producer."""
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
        """Note that keys are in a batch on the way to their target."""
        for key in keys if self._names else ():
            name = self._names.pop(key, 0)
            if name:
                del self._keys[name]
                self._delivered[name] = key
                if len(self._delivered) > DELIVERED_REMEMBERED:
                    del self._delivered[next(iter(self._delivered))]

    def forget(self, keys: Iterable[int]) -> None:
        """Forget the names of keys that are in a run now, or were cancelled long ago."""
        for key in keys if self._names else ():
            name = self._names.pop(key, 0)
            if name:
                del self._keys[name]

    # ------------------------------------------------------------ runs

    def _kept_filter(self, run: Run) -> bytes:
        """Read the filter of a run, and keep it; empty = the memory is full of newer runs' filters.

        No filter is read before a name is searched, so that a new owner with many runs delivers first.
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
