"""How many executors of which size a session starts, from what the Ray cluster has free. Pure.

Used by raylog.spark.session. By default a session takes half of the free CPUs, so that some are left for other users of
Ray, and for Ray Data in the same program. Ray counts the CPUs of executors, but not their memory, so that is kept well
below what their node has free.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from raylog.base.errors import InvalidConfig, SparkStartFailed

MIB = 2**20
CORES_MAX = 4
"""Most cores of one executor by default: more tasks in one JVM wait for each other's garbage collection."""
MEMORY_PER_CORE = 1024 * MIB
MEMORY_MIN = 512 * MIB
"""Spark refuses executors with less than 450 MiB."""
MEMORY_STEP = 128 * MIB
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the Ray cluster: all its CPUs, and the CPUs and memory (bytes) that no actor or task holds."""

    name: str
    cpus: float
    free_cpus: float
    free_memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Executors of a session; `memory` is the heap of each, as Spark spells it ("1g", "512m")."""

    executors: int
    cores: int
    memory: str

    def __str__(self) -> str:
        many = "1 executor" if self.executors == 1 else f"{self.executors} executors"
        return f"{many} of {_cpus(self.cores)} and {self.memory}"


def choose(nodes: Sequence[Node], *, executors: int | None, cores: int | None, memory: str | None) -> Sizes:
    """Choose the sizes that the caller left open (None).

    Raises InvalidConfig for a number below 1 or an invalid memory size, and SparkStartFailed when no node of the
    cluster could ever hold one executor.
    """
    for name, number in (("num_executors", executors), ("executor_cores", cores)):
        if number is not None and number < 1:
            raise InvalidConfig(f"{name} must be at least 1, not {number}.")
    largest = max((int(node.cpus) for node in nodes), default=0)
    if largest < (cores or 1):
        raise SparkStartFailed(
            f"An executor of {_cpus(cores or 1)} fits on no node of this Ray cluster, whose largest has "
            f"{_cpus(largest)}: pass a smaller executor_cores, or add a node."
        )
    share = max(1, sum(int(node.free_cpus) for node in nodes) // 2)
    if cores is None:
        freest = max(int(node.free_cpus) for node in nodes)
        each = share if executors is None else share // executors
        cores = max(1, min(CORES_MAX, freest, each))
    if executors is None:
        executors = max(1, min(share // cores, room(nodes, cores)))
    if memory is None:
        memory = _memory(nodes, executors, cores)
    elif parse_memory(memory) < MEMORY_MIN:
        raise InvalidConfig(f"executor_memory must be at least {MEMORY_MIN // MIB}m, not {memory}.")
    return Sizes(executors=executors, cores=cores, memory=memory)


def room(nodes: Sequence[Node], cores: int) -> int:
    """How many executors of so many cores fit into the CPUs that are free now."""
    return sum(int(node.free_cpus) // cores for node in nodes)


def shortage(nodes: Sequence[Node], sizes: Sizes, started: int) -> str:
    """The sentence for executors that did not start: what they need, what is free, and what to do."""
    missing = sizes.executors - started
    free = ", ".join(f"{_number(node.free_cpus)} of {_cpus(node.cpus)} on {node.name}" for node in nodes)
    needs = f"{missing} of {sizes.executors} executors did not start: each needs {_cpus(sizes.cores)} on one node"
    if room(nodes, sizes.cores) >= missing:
        return f"{needs}, which is free ({free}), so their processes failed or are slow."
    return f"{needs}, and free are {free or 'none'}: wait for other jobs, pass smaller sizes, or add a node."


def parse_memory(text: str) -> int:
    """Bytes of a size as Spark spells it: "1g", "512m", "2048k". Raises InvalidConfig for other text."""
    found = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)i?b?\s*", text.lower())
    if found is None:
        raise InvalidConfig(f'executor_memory must be a size such as "1g" or "512m", not {text!r}.')
    return int(found[1]) * _UNITS[found[2]]


def _memory(nodes: Sequence[Node], executors: int, cores: int) -> str:
    """The heap of an executor: a gibibyte for each core, but all heaps of a node take at most half of its free memory.

    The other half is for Python workers and buffers outside the heap.
    """
    busiest = max(nodes, key=lambda node: int(node.free_cpus))
    on_one_node = max(1, min(executors, int(busiest.free_cpus) // cores))
    available = min((node.free_memory for node in nodes if node.free_cpus >= cores), default=busiest.free_memory)
    size = min(MEMORY_PER_CORE * cores, available // 2 // on_one_node)
    size = max(MEMORY_MIN, size // MEMORY_STEP * MEMORY_STEP)
    return f"{size // MIB}m" if size % 2**30 else f"{size // 2**30}g"


def _cpus(count: float) -> str:
    return f"{_number(count)} CPU{'' if count == 1 else 's'}"


def _number(count: float) -> str:
    return f"{count:g}"
