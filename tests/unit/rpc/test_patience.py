"""When a server gives a connection up: by counters alone, on a clock of the test."""

import logging

import pytest

from raylog.rpc.host import MOST_DESCRIPTORS, connections_within, raise_descriptor_limit
from raylog.rpc.limits import Limits
from raylog.rpc.occasional import INTERVAL_S, OccasionalWarning
from raylog.rpc.patience import Patience, Vitals

LIMITS = Limits()
REST = Vitals(rounds=5, partial_bytes=0, unsent_bytes=0, writes=0, is_busy=False)


def verdicts(*looks: tuple[float, Vitals], may_be_idle: bool = True) -> list[str]:
    patience = Patience()
    return [patience.verdict(now_s, seen, LIMITS, may_be_idle=may_be_idle) for now_s, seen in looks]


def test_a_frame_that_stays_incomplete_is_late() -> None:
    begun = REST._replace(partial_bytes=10)
    assert verdicts((0, begun), (30, begun), (31, begun))[:2] == ["", ""]
    assert "did not arrive" in verdicts((0, begun), (31, begun))[1]


def test_each_frame_has_its_own_time() -> None:
    assert not any(verdicts(*[(20.0 * n, REST._replace(rounds=n, partial_bytes=10)) for n in range(1, 20)]))


def test_a_large_frame_may_take_as_long_as_it_keeps_the_pace() -> None:
    steady = [(10.0 * n, REST._replace(partial_bytes=1 + 10 * n * LIMITS.min_frame_bytes_per_s)) for n in range(20)]
    assert not any(verdicts(*steady))
    trickle = [(10.0 * n, REST._replace(partial_bytes=1 + n)) for n in range(20)]
    assert any(verdicts(*trickle))


def test_a_peer_that_takes_nothing_is_stalled_and_a_slow_one_is_not() -> None:
    full = REST._replace(unsent_bytes=5_000_000)
    assert "took none of 5000000 bytes" in verdicts((0, full), (61, full))[1]
    assert not any(verdicts(*[(50.0 * n, full._replace(writes=n)) for n in range(10)]))


def test_a_client_without_work_is_idle_and_a_member_never_is() -> None:
    assert "no request for" in verdicts((0, REST), (601, REST), may_be_idle=False)[1]
    assert not any(verdicts((0, REST), (601, REST), may_be_idle=True))


@pytest.mark.parametrize(
    "work", [REST._replace(is_busy=True), REST._replace(unsent_bytes=1, writes=9), REST._replace(rounds=6)]
)
def test_whatever_goes_on_makes_a_connection_not_idle(work: Vitals) -> None:
    assert not any(verdicts((0, REST), (590, work), (640, work), may_be_idle=False))


def test_half_of_the_descriptors_stay_for_files() -> None:
    assert connections_within(1024, 10_000) == 512
    assert connections_within(1_000_000, 10_000) == 10_000
    assert connections_within(1, 10_000) == 1


def test_the_descriptor_limit_is_only_ever_raised() -> None:
    first = raise_descriptor_limit()
    assert 0 < first <= MOST_DESCRIPTORS
    assert raise_descriptor_limit() == first


def test_a_warning_that_strangers_cause_is_one_line_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    warning = OccasionalWarning(logging.getLogger("raylog.test"), lambda: now_s[0])
    for _ in range(1000):
        warning.warn("refused: %d", 7)
    now_s[0] = INTERVAL_S
    warning.warn("refused: %d", 8)
    assert [record.getMessage() for record in caplog.records] == [
        "refused: 7",
        "refused: 8 (999 more of these since the last such line.)",
    ]
