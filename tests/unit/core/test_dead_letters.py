"""Dead letters: their headers, their names, and the end of circles."""

from dataclasses import replace

import pytest

from raylog.base.errors import InvalidConfig
from raylog.core.configuration.time_keys import check_expiry
from raylog.core.controller.topics import validate_topic_name
from raylog.core.dead_letters import (
    HOPS,
    HOPS_MAX,
    REASON,
    TTL,
    TTL_MAX_MS,
    UNDELIVERABLE_TOPIC,
    Cause,
    Header,
    Reason,
    cause_of,
    dead_headers,
    hops_of,
    may_hop,
    target_of,
    topic_of_group,
    ttl_of,
    without_cause,
)

EXPIRED = Cause(reason=Reason.EXPIRED, topic="jobs", partition=3, offset=17)
REJECTED = Cause(
    reason=Reason.REJECTED,
    topic="jobs",
    partition=3,
    offset=17,
    message="no such user",
    group="workers",
    delivery_count=4,
)
OWN: list[Header] = [("source", b"csv"), ("empty", None), ("source", b"twice")]


def test_a_dead_letter_keeps_its_headers_and_says_why() -> None:
    assert dead_headers(OWN, REJECTED) == [
        *OWN,
        ("__dlq.errors.topic", b"jobs"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"17"),
        ("__dlq.errors.group", b"workers"),
        ("__dlq.errors.delivery.count", b"4"),
        ("__dlq.errors.message", b"no such user"),
        (REASON, b"rejected"),
        (HOPS, b"1"),
    ]


def test_what_does_not_apply_is_left_out() -> None:
    names = [name for name, _ in dead_headers(None, EXPIRED)]
    assert names == ["__dlq.errors.topic", "__dlq.errors.partition", "__dlq.errors.offset", REASON, HOPS]


def test_a_dead_letter_does_not_expire() -> None:
    assert TTL not in dict(dead_headers([(TTL, b"1000")], EXPIRED))


def test_the_last_cause_counts_and_hops_add_up() -> None:
    headers = dead_headers(dead_headers(OWN, REJECTED), EXPIRED)
    assert cause_of(headers) == EXPIRED
    assert hops_of(headers) == 2
    assert [name for name, _ in headers].count(REASON) == 1


@pytest.mark.parametrize("cause", [EXPIRED, REJECTED])
def test_the_cause_can_be_read_back(cause: Cause) -> None:
    assert cause_of(dead_headers(OWN, cause)) == cause


@pytest.mark.parametrize(
    "headers",
    [None, [], OWN, [(REASON, b"expired")], [*dead_headers(None, EXPIRED), (REASON, b"bored")], [(REASON, b"\xff")]],
)
def test_a_record_that_is_no_dead_letter_has_no_cause(headers: list[Header] | None) -> None:
    assert cause_of(headers) is None


def test_a_circle_ends_in_the_topic_for_undeliverable_records() -> None:
    headers: list[Header] = []
    targets = []
    for _ in range(HOPS_MAX + 1):
        targets.append(target_of(headers, "jobs"))
        headers = dead_headers(headers, EXPIRED)
    assert targets == ["jobs"] * HOPS_MAX + [UNDELIVERABLE_TOPIC]
    assert not may_hop(headers)


def test_without_a_dead_letter_topic_a_record_is_undeliverable() -> None:
    assert target_of(OWN, "") == UNDELIVERABLE_TOPIC


@pytest.mark.parametrize("value", [None, b"", b"-3", b"many"])
def test_an_unreadable_number_of_hops_counts_as_none(value: bytes | None) -> None:
    assert hops_of([(HOPS, value)]) == 0


def test_what_is_sent_on_by_a_person_is_as_it_was() -> None:
    assert without_cause(dead_headers([*OWN, (TTL, b"5")], REJECTED)) == OWN


def test_a_group_has_a_dead_letter_topic_of_its_own() -> None:
    assert topic_of_group("workers") == "dlq.workers"


@pytest.mark.parametrize("hops", [b"9" * 15, b"9" * 5_000])
def test_a_number_of_hops_that_is_too_long_ends_nothing(hops: bytes) -> None:
    assert not may_hop([(HOPS, hops)])


def test_a_dead_letter_has_the_timestamp_of_its_record() -> None:
    cause = replace(REJECTED, timestamp_ms=1_234)
    headers = dead_headers(OWN, cause)
    assert ("__dlq.errors.timestamp", b"1234") in headers
    assert cause_of(headers) == cause
    assert without_cause(headers) == OWN


@pytest.mark.parametrize("group", ["a/b", "a b", "\u00e4", "g" * 246, "g" * 400, "/" * 300])
def test_every_group_has_a_legal_dead_letter_topic(group: str) -> None:
    validate_topic_name(topic_of_group(group))


def test_groups_that_differ_only_in_illegal_letters_have_different_topics() -> None:
    assert len({topic_of_group(group) for group in ("a/b", "a b", "a_b", "a?b")}) == 4


@pytest.mark.parametrize(
    ("headers", "ttl_ms"),
    [
        (None, None),
        (OWN, None),
        ([(TTL, b"250")], 250),
        ([(TTL, b"soon")], None),
        ([(TTL, None)], None),
        ([(TTL, b"-1")], None),
        ([(TTL, b"250"), (TTL, b"300")], 300),
        ([(TTL, b"9" * 15)], TTL_MAX_MS),
        ([(TTL, b"9" * 5_000)], TTL_MAX_MS),
    ],
)
def test_the_time_to_live_of_a_record(headers: list[Header] | None, ttl_ms: int | None) -> None:
    assert ttl_of(headers) == ttl_ms


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("t", {"ttl.ms": "1000", "dead.letter.topic": "t"}),
        ("t", {"ttl.ms": "1000", "dead.letter.topic": "__scheduled"}),
        ("t", {"ttl.ms": "1000", "dead.letter.topic": "d", "retention.ms": "1000"}),
        ("t", {"ttl.ms": str(8 * 86_400_000), "dead.letter.topic": "d"}),
    ],
)
def test_settings_by_which_records_would_be_lost_are_refused(name: str, config: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        check_expiry(name, config)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"ttl.ms": "1000"},
        {"ttl.ms": "1000", "dead.letter.topic": "d"},
        {"ttl.ms": str(8 * 86_400_000), "dead.letter.topic": "d", "retention.ms": "-1"},
        {"ttl.ms": "1000", "retention.ms": "500"},
    ],
)
def test_other_settings_are_taken(config: dict[str, str]) -> None:
    check_expiry("t", config)
