"""How much the processes of a world hold: the size of every collection that can be reached from their servers.

Sizes are added up by the class and the attribute that holds the collection, so that no other order in which objects are
found changes them. Taken at equal moments, when all that came was deleted again, a size that rises each time is a leak.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from tests.simulation.whole.loop.processes import SimProcess
    from tests.simulation.whole.world import World

Sizes = dict[tuple[str, str], int]
"""Sizes by the life of a process and by what holds the collection. Those of zero are left out."""
LISTS: Final = (list, tuple, set, frozenset, deque)
BYTES: Final = (bytearray, memoryview)
LEAVES: Final = (str, bytes, int, float, type(None), type, ModuleType, FunctionType)
BOUNDED: Final = {
    "MetadataImage.deleted_topics": "the newest 10,000",
    "Segment._recent": "the newest 256 batches",
    "Routes._topics": "cleared at 10,000",
    "Placing._topics": "cleared at 10,000",
    "Bodies._held": "as many bytes as its cache takes",
    "Bodies._firsts": "one for each batch of `Bodies._held`",
    "Pending.cut": "forgotten with the next checkpoint, which is due after some thousand rows",
    "QuorumRunner.batches": "until the next snapshot of the metadata",
    "EpochHistory.entries": "one for each leader of the log that is kept; the cluster's own logs keep megabytes",
}
"""What fills up to a limit that is far above what a run needs, and the limit."""
KEPT_A_DAY: Final = ("PartitionLog.segments", "RecentSegments._recent", "descriptors")
"""Of the cluster's own logs: their tombstones stay for a real day, and with them the segments that have them."""
OF_LOOPS: Final = ("_of_loops", "spinlock._all")
"""Weak references of modules to what ends with a process: here many processes share the modules."""
RISES_MIN: Final = 3
RISING_SHARE: Final = 0.25


def sizes_below(*roots: tuple[str, object]) -> Counter[str]:
    """Return the size of each collection that can be reached from these objects, each with its own name."""
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    found = list(roots)
    while found:
        where, item = found.pop()
        if isinstance(item, LEAVES) or where in BOUNDED or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Mapping) and not _is_ours(item):
            sizes[where] += len(item)
            found += [(where + "{}", each) for pair in item.items() for each in pair]
        elif isinstance(item, LISTS):
            is_bounded = isinstance(item, tuple) or (isinstance(item, deque) and item.maxlen is not None)
            sizes[where] += 0 if is_bounded else len(item)
            found += [(where + "[]", each) for each in item]
            if _is_ours(item):
                found += [(f"{type(item).__name__}.{name}", each) for name, each in _attributes(item)]
        elif isinstance(item, BYTES):
            sizes[where] += len(item)
        elif isinstance(item, partial):
            found += [(where, each) for each in (item.func, *item.args)]
        elif isinstance(item, MethodType):
            found.append((where, item.__self__))
        elif _is_ours(item):
            found += [(f"{type(item).__name__}.{name}", each) for name, each in _attributes(item)]
    return Counter({where: size for where, size in sizes.items() if size})


def _is_ours(item: object) -> bool:
    """Whether it is an object of what ships; those of the world and of the standard library are not looked into."""
    return type(item).__module__.startswith("raylog.")


def _attributes(item: object) -> Iterator[tuple[str, object]]:
    yield from getattr(item, "__dict__", {}).items()
    if isinstance(item, msgspec.Struct):
        yield from ((name, getattr(item, name)) for name in item.__struct_fields__)
        return
    for kind in type(item).__mro__:
        named = vars(kind).get("__slots__", ())
        for name in (named,) if isinstance(named, str) else named:
            name = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            if name != "__weakref__" and hasattr(item, name):
                yield name, getattr(item, name)


def holdings(world: World, clients: Mapping[str, object]) -> Sizes:
    """Return how much each process of a world holds, the modules' own collections, and what clients are given."""
    timers = world.scheduler.timers()
    found = {name: sizes_below(("", client)) for name, client in clients.items()}
    found["modules"] = sizes_below(*_modules())
    for actor in world.cluster.actors.values():
        if actor.serves and actor.process is not None:
            counts = _of_process(actor.process, timers.get(actor.process, Counter()))
            found[f"{actor.name}, life {actor.lives}"] = sizes_below(("", actor.server)) + counts
    return {(name, where): size for name, sizes in found.items() for where, size in sizes.items()}


def _of_process(process: SimProcess, timers: Counter[str]) -> Counter[str]:
    """Return the number of tasks, timers, connections and open files of a process."""
    counts = Counter({f"timers of {name}": count for name, count in timers.items()})
    counts.update(f"tasks of {task.get_coro().__qualname__}" for task in asyncio.all_tasks(process))  # type: ignore[union-attr]
    counts["connections"], counts["descriptors"] = len(process.transports), len(process.descriptors)
    return counts


def _modules() -> Iterator[tuple[str, object]]:
    """Yield what is kept in modules and classes for all of a process."""
    for name, module in list(sys.modules.items()):
        if name.startswith("raylog."):
            for key, value in list(vars(module).items()):
                if f"{name}.{key}".endswith(OF_LOOPS):
                    continue
                if isinstance(value, type) and value.__module__ == name:
                    kept = [(f"{name}.{key}.{field}", each) for field, each in vars(value).items()]
                    yield from (pair for pair in kept if not pair[0].endswith(OF_LOOPS))
                else:
                    yield f"{name}.{key}", value


def rising(marks: Sequence[Sizes]) -> dict[tuple[str, str], list[int]]:
    """Return what has grown from mark to mark.

    All of the second half is above all of the first one, and there are rises all along: no cache that fills up once.
    """
    found = {}
    for key in sorted(set().union(*marks)):
        sizes = [mark.get(key, 0) for mark in marks]
        half = (len(sizes) + 1) // 2
        rises = sum(before < after for before, after in itertools.pairwise(sizes))
        if key[0].startswith("replica:__") and key[1] in KEPT_A_DAY:
            continue
        if rises >= max(RISES_MIN, RISING_SHARE * (len(sizes) - 1)) and min(sizes[half:]) > max(sizes[:half]):
            found[key] = sizes
    return found
