"""Which replicas a broker vouches for, and when a replica relies on that."""

import pytest

from raylog.core.vouching import NO_LIFE, Beat, Cover, Note, Pace, Voucher, is_vouched_for

PACE = Pace.of(500, 2_500)
EPOCH = 7


def beat(life: int, at_ms: int, hanging_ms: int = 0) -> Beat:
    return Beat(slot=8 * life, incarnation=life, beat_ms=at_ms, disk_hanging_ms=hanging_ms, vouched=NO_LIFE)


@pytest.mark.parametrize(
    ("heartbeat_ms", "timeout_ms"), [(500, 2_500), (50, 300), (10, 20), (500, 1_000), (60_000, 600_000)]
)
def test_a_replica_speaks_before_its_session_ends(heartbeat_ms: int, timeout_ms: int) -> None:
    pace = Pace.of(heartbeat_ms, timeout_ms)
    assert pace.trusted_ms + pace.beat_ms <= timeout_ms * 3 // 4
    assert pace.beat_ms <= min(500, heartbeat_ms)


def test_the_first_statement_names_all_that_beat_and_the_next_nothing_new() -> None:
    voucher = Voucher(PACE)
    first = voucher.vouch(10_000, [beat(1, 9_600), beat(2, 10_000)])
    assert first == (frozenset({1, 2}), True, ())
    assert voucher.vouch(10_500, [beat(1, 10_100), beat(2, 10_500)]) == (frozenset({1, 2}), False, ())


def test_a_broker_without_replicas_states_that_once() -> None:
    voucher = Voucher(PACE)
    assert voucher.vouch(10_000, []).is_new
    assert not voucher.vouch(10_500, []).is_new


def test_a_replica_that_falls_silent_is_noted_once_with_its_silence() -> None:
    voucher = Voucher(PACE)
    voucher.vouch(10_000, [beat(1, 10_000)])
    late = PACE.silent_after_ms
    assert voucher.vouch(10_000 + late, [beat(1, 10_000)]).vouched == {1}
    found = voucher.vouch(10_001 + late, [beat(1, 10_000)])
    assert found == (frozenset(), True, (Note(1, late + 1, 0),))
    assert voucher.vouch(10_500 + late, [beat(1, 10_000)]) == (frozenset(), False, ())
    assert voucher.vouch(11_000 + late, [beat(1, 11_000 + late)]) == (frozenset({1}), True, ())


def test_a_replica_that_gave_its_slot_up_is_vouched_for_no_more() -> None:
    voucher = Voucher(PACE)
    voucher.vouch(10_000, [beat(1, 10_000), beat(2, 10_000)])
    assert voucher.vouch(10_500, [beat(2, 10_500)]) == (frozenset({2}), True, ())


def test_a_disk_that_hangs_is_noted_while_it_does() -> None:
    voucher = Voucher(PACE)
    assert voucher.vouch(10_000, [beat(1, 10_000, 700)]).notes == (Note(1, 0, 700),)
    assert voucher.vouch(10_500, [beat(1, 10_500, 1_200)]) == (frozenset({1}), False, (Note(1, 0, 1_200),))
    assert voucher.vouch(11_000, [beat(1, 11_000)]).notes == ()


def test_a_beat_from_the_future_is_none() -> None:
    assert Voucher(PACE).vouch(10_000, [beat(1, 99_000)]) == (frozenset(), True, ())


def test_a_replica_relies_on_a_fresh_statement_of_its_own_controller() -> None:
    confirmed_ms = 10_000
    until_ms = confirmed_ms + PACE.trusted_ms

    def relies(now_ms: int, cover: Cover) -> bool:
        return is_vouched_for(now_ms, 5, EPOCH, PACE, cover)

    assert relies(until_ms, Cover(EPOCH, confirmed_ms, 5))
    assert not relies(until_ms + 1, Cover(EPOCH, confirmed_ms, 5))
    assert not relies(until_ms, Cover(EPOCH, confirmed_ms, 4))
    assert not relies(until_ms, Cover(EPOCH + 1, confirmed_ms, 5))
    assert not relies(until_ms, Cover(EPOCH, confirmed_ms + 60_000, 5))


def test_what_is_not_known_vouches_for_no_replica() -> None:
    assert not is_vouched_for(0, NO_LIFE, EPOCH, PACE, Cover(EPOCH, 0, NO_LIFE))
    assert not is_vouched_for(0, 5, NO_LIFE, PACE, Cover(NO_LIFE, 0, 5))


def test_a_broker_vouches_for_a_replica_that_it_has_stopped() -> None:
    voucher = Voucher(PACE)
    voucher.vouch(10_000, [beat(1, 10_000), beat(2, 10_000)])
    stopped_for_long = voucher.vouch(60_000, [beat(1, 10_000), beat(2, 60_000)], {1: 60_000})
    assert stopped_for_long == (frozenset({1, 2}), False, ())


def test_a_replica_that_anything_else_has_stopped_is_silent() -> None:
    voucher = Voucher(PACE)
    voucher.vouch(10_000, [beat(1, 10_000), beat(2, 10_000)])
    found = voucher.vouch(20_000, [beat(1, 10_000), beat(2, 10_000)], {2: 20_000})
    assert found == (frozenset({2}), True, (Note(1, 10_000, 0),))


def test_a_continued_replica_is_silent_from_then_on_until_it_beats() -> None:
    voucher = Voucher(PACE)
    voucher.vouch(10_000, [beat(1, 10_000)])
    late = PACE.silent_after_ms
    assert voucher.vouch(60_000 + late, [beat(1, 10_000)], {1: 60_000}).vouched == {1}
    found = voucher.vouch(60_001 + late, [beat(1, 10_000)], {1: 60_000})
    assert found == (frozenset(), True, (Note(1, late + 1, 0),))
    assert voucher.vouch(62_000, [beat(1, 61_900)], {1: 60_000}).vouched == {1}


@pytest.mark.parametrize(
    ("heartbeat_ms", "timeout_ms"), [(500, 2_500), (50, 300), (10, 20), (500, 1_000), (60_000, 600_000)]
)
def test_a_broker_that_hangs_keeps_nothing_stopped_for_a_session(heartbeat_ms: int, timeout_ms: int) -> None:
    pace = Pace.of(heartbeat_ms, timeout_ms)
    assert pace.hung_after_ms + pace.beat_ms <= timeout_ms * 3 // 4
