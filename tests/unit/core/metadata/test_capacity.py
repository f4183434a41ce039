"""How many replicas a broker bears, by what it reports of its machine and its process."""

import pytest

from raylog.core.metadata.capacity import UNKNOWN, Capacity

GIB = 1 << 30
MACHINE = Capacity(memory_bytes=24 * GIB, cores=2, open_files=65_536, can_doze=True)


def awake(capacity: Capacity, stated: int = -1, dozes: bool = True, sharing: int = 1) -> tuple[int, str]:
    bound = capacity.awake(stated=stated, dozes=dozes, sharing=sharing)
    assert bound is not None
    return bound.limit, bound.why


def test_where_replicas_doze_memory_bounds_those_that_are_awake() -> None:
    assert awake(MACHINE) == (716, "70 % of its machine's 24.0 GiB of memory, 24 MiB each")


def test_six_hundred_replicas_fit_on_three_brokers_of_one_machine() -> None:
    limit, why = awake(MACHINE, sharing=3)
    assert limit >= 200
    assert why.endswith(", shared by 3 brokers")


@pytest.mark.parametrize("can_doze", [True, False])
def test_where_replicas_do_not_doze_cores_bound_them(can_doze: bool) -> None:
    limit, why = awake(Capacity(memory_bytes=24 * GIB, cores=2, can_doze=can_doze), dozes=not can_doze)
    assert (limit, why) == (200, "100 for each of its machine's 2 cores, as replicas do not doze there")


def test_a_small_machine_is_bounded_by_its_memory_all_the_same() -> None:
    assert awake(Capacity(memory_bytes=GIB, cores=2))[0] == 29


def test_open_files_are_of_the_process_and_not_shared() -> None:
    few = Capacity(memory_bytes=24 * GIB, cores=2, open_files=1_024, can_doze=True)
    expected = (128, "half of the 1,024 files that its process may have open, 4 each (ulimit -n)")
    assert awake(few) == awake(few, sharing=3) == expected


def test_a_stated_limit_counts_up_to_what_open_files_allow() -> None:
    assert awake(MACHINE, stated=5_000) == (5_000, "replica.awake.max")
    assert awake(MACHINE, stated=0) == (0, "replica.awake.max")
    assert awake(UNKNOWN, stated=7) == (7, "replica.awake.max")
    assert awake(MACHINE, stated=100_000)[0] == 8_192


def test_a_machine_bears_at_least_one() -> None:
    assert awake(Capacity(memory_bytes=1, cores=0, open_files=1))[0] == 1


def test_memory_bounds_all_replicas() -> None:
    bound = MACHINE.declared(sharing=1)
    assert bound is not None
    assert (bound.limit, bound.why) == (161_061, "10 % of its machine's 24.0 GiB of memory, 16 kB each")
    small = Capacity(memory_bytes=2 * GIB).declared(sharing=1)
    assert small is not None
    assert small.limit >= 10_000


def test_what_is_not_known_bounds_nothing() -> None:
    assert UNKNOWN.awake(stated=-1, dozes=True, sharing=1) is None
    assert UNKNOWN.declared(sharing=1) is None


def test_the_wire_form_may_lack_fields_or_have_more() -> None:
    assert Capacity.from_row(MACHINE.to_row()) == MACHINE
    assert Capacity.from_row(()) == UNKNOWN
    assert Capacity.from_row((5,)) == Capacity(memory_bytes=5)
    assert Capacity.from_row((*MACHINE.to_row(), 9)) == MACHINE
