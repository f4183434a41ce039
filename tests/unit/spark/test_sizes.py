"""How many executors a session starts by default, and the sentence for those that do not start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.base.errors import InvalidConfig, SparkStartFailed
from raylog.spark.sizes import CORES_MAX, MEMORY_MIN, Node, Sizes, choose, parse_memory, room, shortage

GIB = 2**30


def node(free: float, of: float | None = None, *, memory: int = 64 * GIB, name: str = "10.0.0.1") -> Node:
    """A node with `free` of its CPUs free."""
    return Node(name=name, cpus=free if of is None else of, free_cpus=free, free_memory=memory)


def sizes(
    *nodes: Node, executors: int | None = None, cores: int | None = None, memory: str | None = None
) -> tuple[int, int, str]:
    found = choose(nodes, executors=executors, cores=cores, memory=memory)
    return found.executors, found.cores, found.memory


def test_a_laptop_with_two_cores_keeps_one_for_others() -> None:
    assert sizes(node(2, memory=4 * GIB)) == (1, 1, "1g")


def test_ten_free_nodes_are_used_by_half() -> None:
    assert sizes(*[node(16)] * 10) == (20, 4, "4g")


def test_what_other_jobs_hold_is_left_to_them() -> None:
    assert sizes(node(4, of=16), node(0, of=16)) == (1, 2, "2g")


def test_a_busy_cluster_gets_one_executor_that_waits() -> None:
    assert sizes(node(0, of=8)) == (1, 1, "1g")


def test_what_is_given_is_kept_and_the_rest_follows() -> None:
    assert sizes(node(16), executors=2) == (2, 4, "4g")
    assert sizes(node(16), executors=1, cores=8) == (1, 8, "8g")
    assert sizes(node(16), cores=2) == (4, 2, "2g")
    assert sizes(node(16), memory="700m") == (2, 4, "700m")


def test_little_memory_makes_small_executors() -> None:
    assert sizes(node(8, memory=3 * GIB)) == (1, 4, "1536m")
    assert sizes(node(2, memory=0)) == (1, 1, "512m")


def test_an_executor_that_fits_nowhere_is_refused_at_once() -> None:
    with pytest.raises(SparkStartFailed, match=r"An executor of 8 CPUs fits on no node .* largest has 4 CPUs"):
        sizes(node(4), node(2), cores=8)
    with pytest.raises(SparkStartFailed, match=r"An executor of 1 CPU fits on no node .* largest has 0 CPUs"):
        sizes()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"executors": 0}, "num_executors must be at least 1, not 0"),
        ({"cores": -1}, "executor_cores must be at least 1, not -1"),
        ({"memory": "plenty"}, 'executor_memory must be a size such as "1g" or "512m", not \'plenty\''),
        ({"memory": "64m"}, "executor_memory must be at least 512m, not 64m"),
    ],
)
def test_impossible_sizes_are_refused(given: dict[str, int | str], sentence: str) -> None:
    wanted: dict[str, int | str | None] = {"executors": None, "cores": None, "memory": None}
    with pytest.raises(InvalidConfig, match=sentence):
        choose([node(4)], **(wanted | given))  # type: ignore[arg-type]


def test_sizes_of_memory_are_read_as_spark_writes_them() -> None:
    assert [parse_memory(text) for text in ("1g", "512M", "2048k", "1024mb", "7")] == [GIB, GIB // 2, 2**21, GIB, 7]


def test_a_shortage_names_what_is_needed_and_what_is_free() -> None:
    wanted = Sizes(executors=2, cores=4, memory="4g")
    busy = [node(1, of=8, name="a"), node(0.5, of=4, name="b")]
    assert shortage(busy, wanted, 0) == (
        "2 of 2 executors did not start: each needs 4 CPUs on one node, and free are 1 of 8 CPUs on a, 0.5 of 4 CPUs "
        "on b: wait for other jobs, pass smaller sizes, or add a node."
    )
    assert "which is free (8 of 8 CPUs on a), so their processes failed" in shortage([node(8, name="a")], wanted, 1)


NODES = st.lists(
    st.builds(
        lambda total, share, memory: Node(name="n", cpus=total, free_cpus=total * share, free_memory=memory),
        st.integers(1, 128),
        st.floats(0, 1),
        st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=12,
)


@given(nodes=NODES)
def test_defaults_always_fit_and_leave_half_of_what_is_free(nodes: list[Node]) -> None:
    found = choose(nodes, executors=None, cores=None, memory=None)
    assert found.executors >= 1
    assert 1 <= found.cores <= CORES_MAX
    assert parse_memory(found.memory) >= MEMORY_MIN
    free = sum(int(each.free_cpus) for each in nodes)
    if room(nodes, 1) >= 1:
        assert room(nodes, found.cores) >= found.executors
        assert found.executors * found.cores <= max(1, free // 2)
    else:
        assert (found.executors, found.cores) == (1, 1)
