"""When a replica may doze, and until when."""

import pytest

from raylog.core.dozing.rest import LONGEST_MS, LOOK_MS, SHORTEST_MS, Quiet, doze_until_ms, next_look_ms

NOW = 100_000
AT_REST = Quiet(since_ms=NOW - 2_000, parked=2, due_ms=NOW + 30_000)


def found(quiet: Quiet | None, *, after_ms: int = 2_000, open_requests: int = 2) -> int | None:
    return doze_until_ms(NOW, quiet, doze_after_ms=after_ms, open_requests=open_requests)


def test_a_replica_at_rest_dozes_until_its_next_deadline() -> None:
    assert found(AT_REST) == NOW + 30_000


def test_no_doze_is_longer_than_the_longest() -> None:
    assert found(Quiet(since_ms=0, parked=2, due_ms=NOW + 10 * LONGEST_MS)) == NOW + LONGEST_MS


@pytest.mark.parametrize("after_ms", [2_001, -1])
def test_it_has_to_be_at_rest_for_long_enough(after_ms: int) -> None:
    assert found(AT_REST, after_ms=after_ms) is None


def test_a_machine_with_something_under_way_does_not_doze() -> None:
    assert found(None) is None


@pytest.mark.parametrize("open_requests", [1, 3])
def test_only_requests_that_wait_for_records_may_be_open(open_requests: int) -> None:
    assert found(AT_REST, open_requests=open_requests) is None


def test_what_is_due_soon_is_waited_for_awake() -> None:
    assert found(Quiet(since_ms=0, parked=2, due_ms=NOW + SHORTEST_MS - 1)) is None
    assert found(Quiet(since_ms=0, parked=2, due_ms=NOW + SHORTEST_MS)) == NOW + SHORTEST_MS


def look_in(quiet: Quiet | None, *, after_ms: int) -> int:
    return next_look_ms(NOW, quiet, doze_after_ms=after_ms, pause_ms=250)


def test_a_replica_that_never_dozes_is_looked_at_rarely() -> None:
    assert look_in(AT_REST, after_ms=-1) == look_in(None, after_ms=-1) == LOOK_MS


def test_a_replica_that_was_just_used_is_looked_at_when_it_may_doze() -> None:
    assert look_in(Quiet(since_ms=NOW - 500, parked=0, due_ms=NOW), after_ms=2_000) == 1_500


def test_what_is_under_way_is_looked_at_again_soon() -> None:
    assert look_in(None, after_ms=2_000) == 250
    assert look_in(AT_REST, after_ms=2_000) == 250


def test_no_pause_is_longer_than_a_change_of_settings_may_wait() -> None:
    assert look_in(Quiet(since_ms=NOW, parked=0, due_ms=NOW), after_ms=3_600_000) == LOOK_MS
