"""The claims about a run of everything: a right journal keeps them all, and each planted fault breaks its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.everything.claims import churn, delays, expiry, outbox, queues
from tests.chaos.everything.claims.verdict import find_claims
from tests.chaos.everything.journal import (
    Awaited,
    Event,
    Handed,
    Journal,
    Kept,
    Lived,
    Ruled,
    Seen,
    Sent,
    Withdrawn,
)

Events = list[Event]
WATCHER = "watcher"
LASTING_MS = 10**9


def job(number: int, key: str = "k0") -> Sent:
    return Sent(queues.FEATURE, f"jobs/{number}", "ok", key, 0, number, 0, 1)


def hand(group: str, number: int, verdict: str = "ack", at_ms: int = 10, *, kept: bool = True) -> Events:
    """A record that is handed out and ruled on; `kept`: the verdict is stored."""
    name = f"jobs/{number}"
    ruled = Ruled(group, name, verdict, at_ms, 500 if verdict == "retry" else 0)  # type: ignore[arg-type]  # one of three
    taken = Handed(group, f"{group}-0", 0, number, name, "k0", at_ms)
    return [taken, ruled, *([Kept(group, (name,))] if kept else [])]


def letter(group: str, number: int, offset: int = 0, reason: str = "rejected") -> Seen:
    return Seen(WATCHER, queues.letters_of(group), 0, offset, f"jobs/{number}", 20, 0, reason)


def queue_story() -> Events:
    """Three jobs of a key: the first is retried, the third rejected."""
    events: Events = [job(0), job(1), job(2)]
    for group in queues.GROUPS:
        events += [*hand(group, 0, "retry"), *hand(group, 0, at_ms=600), *hand(group, 1), *hand(group, 2, "reject")]
        events.append(letter(group, 2))
    return events


def delayed(number: int, due_ms: int) -> Sent:
    return Sent(delays.FEATURE, f"due/{number}", "ok", "k0", -1, -1, 0, 1, due_ms)


def due(number: int, due_ms: int, offset: int, late_ms: int = 5) -> Seen:
    return Seen(WATCHER, delays.TOPIC, 0, offset, f"due/{number}", due_ms + late_ms, due_ms)


def delay_story() -> Events:
    return [
        *(delayed(number, 1_000 * (number + 1)) for number in range(3)),
        Withdrawn(delays.FEATURE, "due/2"),
        due(0, 1_000, 0),
        due(1, 2_000, 1),
    ]


def expiry_story() -> Events:
    return [
        *(Sent(expiry.WAITING, f"wait/{n}", "ok", "k0", 0, n, 0, 1, 3_000 + n) for n in range(2)),
        *(Seen(WATCHER, expiry.EXPIRED, 0, n, f"wait/{n}", 3_050 + n, 0, "expired") for n in range(2)),
        Sent(expiry.OFFERS, "offers/0", "ok", "k0", 0, 0, 0, 1, 100),
        Sent(expiry.OFFERS, "offers/1", "ok", "k0", 0, 1, 0, 1, LASTING_MS),
        Seen("skipper", expiry.OFFERS, 0, 1, "offers/1", 500),
    ]


def outbox_story() -> Events:
    return [
        *(Sent(outbox.FEATURE, f"transfers/{n}", "ok", "k0") for n in range(2)),
        Withdrawn(outbox.FEATURE, "transfers/2"),
        *(Seen(WATCHER, outbox.TOPIC, 0, n, f"transfers/{n}") for n in range(2)),
    ]


def lived(life: int, *numbers: int) -> Events:
    sent = [Sent(churn.FEATURE, f"churn-a/{life}/{n}", "ok", "", 0, n) for n in numbers]
    return [*sent, *(seen_life(reader, life, n) for reader in churn.READERS for n in numbers)]


def seen_life(reader: str, life: int, number: int) -> Seen:
    return Seen(reader, "churn-a", 0, number, f"churn-a/{life}/{number}")


def churn_story() -> Events:
    return [
        Lived("churn-a", 0, "created"),
        *lived(0, 0, 1),
        Lived("churn-a", 0, "ends"),
        Lived("churn-a", 1, "created"),
        *lived(1, 0, 1),
        seen_life(churn.SUBSCRIBED, 1, 0),  # its group's coordinator has died
        seen_life(churn.SUBSCRIBED, 1, 1),
    ]


STORIES: dict[str, Callable[[], Events]] = {
    "queue": queue_story,
    "delay": delay_story,
    "expiry": expiry_story,
    "outbox": outbox_story,
    "churn": churn_story,
}


def broken(events: Events) -> set[str]:
    return {anomaly.kind for claim in find_claims(events) for anomaly in claim.wrong}


def without(events: Events, kind: type[Event], name: str) -> Events:
    """The events without those of one kind about a record."""
    return [event for event in events if not (isinstance(event, kind) and getattr(event, "name", "") == name)]


@pytest.mark.parametrize("story", STORIES)
def test_a_right_journal_keeps_every_claim(story: str) -> None:
    assert broken(STORIES[story]()) == set()


def test_each_claim_has_cases_where_every_feature_is_used() -> None:
    events = [event for story in STORIES.values() for event in story()]
    assert [claim.text for claim in find_claims(events) if not claim.count] == []


@pytest.mark.parametrize("story", STORIES)
def test_what_is_acknowledged_and_never_seen_is_lost(story: str) -> None:
    events = STORIES[story]()
    new: dict[str, tuple[Event, str]] = {
        "queue": (job(9), "job lost"),
        "delay": (delayed(9, 9_000), "delayed lost"),
        "expiry": (Sent(expiry.WAITING, "wait/9", "ok", "k0", 0, 9, 0, 1, 3_000), "expired lost"),
        "outbox": (Sent(outbox.FEATURE, "transfers/9", "ok", "k0"), "row lost"),
        "churn": (Sent(churn.FEATURE, "churn-a/1/9", "ok", "", 0, 9), "life lost"),
    }
    event, kind = new[story]
    assert broken([*events, event]) == {kind}


@pytest.mark.parametrize(
    ("story", "again", "kinds"),
    [
        ("queue", letter(queues.FREE, 2, offset=1), {"dead letter twice"}),
        ("delay", due(0, 1_000, 2), {"delayed twice", "delayed out of order"}),
        ("expiry", Seen(WATCHER, expiry.EXPIRED, 0, 2, "wait/1", 9_000, 0, "expired"), {"expired twice"}),
        ("expiry", Seen("skipper", expiry.OFFERS, 0, 2, "offers/1", 600), {"offer twice"}),
        ("outbox", Seen(WATCHER, outbox.TOPIC, 1, 0, "transfers/1"), {"row twice"}),
        ("churn", Seen(churn.SUBSCRIBED, "churn-a", 0, 7, "churn-a/1/1"), {"life twice"}),
    ],
)
def test_a_record_at_two_places_is_found(story: str, again: Event, kinds: set[str]) -> None:
    assert broken([*STORIES[story](), again]) == kinds


@pytest.mark.parametrize(
    ("story", "event", "kind"),
    [
        ("queue", hand(queues.FREE, 8)[0], "job invented"),
        ("queue", letter(queues.FREE, 1, offset=1), "dead letter of no reject"),
        ("queue", Sent(queues.FEATURE, "jobs/1", "fail", "k0"), "job invented"),
        ("delay", Seen(WATCHER, delays.TOPIC, 1, 0, "due/2", 3_001, 3_000), "delayed invented"),
        ("delay", Seen(WATCHER, delays.TOPIC, 1, 0, "due/7", 3_001, 3_000), "delayed invented"),
        ("expiry", Seen(WATCHER, expiry.EXPIRED, 0, 2, "wait/7", 9_000, 0, "expired"), "expired invented"),
        ("expiry", Seen("skipper", expiry.OFFERS, 0, 2, "offers/7", 600), "offer invented"),
        ("outbox", Seen(WATCHER, outbox.TOPIC, 1, 0, "transfers/2"), "row of no commit"),
        ("churn", seen_life(churn.ASSIGNED, 1, 7), "life invented"),
    ],
)
def test_a_record_that_has_no_right_to_be_there_is_found(story: str, event: Event, kind: str) -> None:
    assert kind in broken([*STORIES[story](), event])


@pytest.mark.parametrize(
    ("story", "event", "kind"),
    [
        ("delay", due(0, 1_000, 0), "delayed read again"),
        ("expiry", Seen(WATCHER, expiry.EXPIRED, 0, 1, "wait/1", 9_000, 0, "expired"), "expired read again"),
        ("expiry", Seen("skipper", expiry.OFFERS, 0, 1, "offers/1", 600), "offer read again"),
        ("outbox", Seen(WATCHER, outbox.TOPIC, 0, 0, "transfers/0"), "row read again"),
        ("churn", seen_life(churn.ASSIGNED, 1, 0), "life out of order"),
    ],
)
def test_a_reader_that_goes_back_is_found(story: str, event: Event, kind: str) -> None:
    assert kind in broken([*STORIES[story](), event])


def test_a_job_that_comes_again_after_its_acknowledgement_is_found() -> None:
    assert broken([*queue_story(), *hand(queues.FREE, 1)]) == {"job done twice"}


def test_a_job_may_come_again_while_its_acknowledgement_has_no_answer() -> None:
    events: Events = [job(0), *(e for g in queues.GROUPS for e in (*hand(g, 0, kept=False), *hand(g, 0, kept=False)))]
    assert broken(events) == set()


@pytest.mark.parametrize(("again_ms", "found"), [(507, {"retried early"}), (508, set())])
def test_a_retry_before_its_pause_is_over_is_found(again_ms: int, found: set[str]) -> None:
    events: Events = [job(0)]
    for group in queues.GROUPS:
        events += [*hand(group, 0, "retry", at_ms=10), *hand(group, 0, at_ms=again_ms)]
    assert broken(events) == found, "two clocks of whole milliseconds differ by two"


def test_a_rejected_job_without_a_dead_letter_is_found() -> None:
    events: Events = [event for event in queue_story() if not isinstance(event, Seen)]
    assert broken(events) == {"dead letter lost", "job lost"}


def test_jobs_of_a_key_out_of_order_are_found_only_in_order_of_keys() -> None:
    events: Events = [job(0), job(1)]
    free = [*hand(queues.FREE, 1), *hand(queues.FREE, 0)]
    assert broken([*events, *free, *hand(queues.KEYED, 0), *hand(queues.KEYED, 1)]) == set()
    assert broken([*events, *free, *hand(queues.KEYED, 1), *hand(queues.KEYED, 0)]) == {"jobs out of order"}


def test_a_delayed_record_that_is_early_is_found() -> None:
    assert broken([delayed(0, 1_000), due(0, 1_000, 0, late_ms=-1)]) == {"delayed early"}


def test_a_delayed_record_with_another_timestamp_is_found() -> None:
    assert broken([delayed(0, 1_000), due(0, 1_001, 0)]) == {"delayed stamp"}


def test_delays_are_late_or_out_of_order_only_where_nothing_is_broken() -> None:
    late_ms = delays.LATE_MS + 1
    events: Events = [delayed(0, 1_000), delayed(1, 2_000), due(1, 2_000, 0, late_ms), due(0, 1_000, 1, late_ms)]
    assert broken(events) == {"delayed late", "delayed out of order"}
    calm = find_claims(events, broken=[(900, 2_000)])
    assert [anomaly.kind for claim in calm for anomaly in claim.wrong] == []


def test_a_delay_that_the_next_fault_meets_on_its_way_is_not_late() -> None:
    events: Events = [delayed(0, 1_000), due(0, 1_000, 0, delays.LATE_MS + 1)]
    meets = find_claims(events, broken=[(1_500, 3_000)])
    assert [anomaly.kind for claim in meets for anomaly in claim.wrong] == []
    later = find_claims(events, broken=[(1_001 + delays.LATE_MS, 30_000)])
    assert [anomaly.kind for claim in later for anomaly in claim.wrong] == ["delayed late"]


def test_a_cancellation_without_an_answer_excuses_either_end() -> None:
    maybe = Withdrawn(delays.FEATURE, "due/0", is_sure=False)
    assert broken([delayed(0, 1_000), maybe]) == set()
    assert broken([delayed(0, 1_000), maybe, due(0, 1_000, 0)]) == set()


def test_a_dead_letter_before_the_end_of_its_record_is_found() -> None:
    events = without(expiry_story(), Seen, "wait/0")
    early = Seen(WATCHER, expiry.EXPIRED, 0, 0, "wait/0", 2_999, 0, "expired")
    assert "expired early" in broken([*events, early])


def test_dead_letters_out_of_order_are_found() -> None:
    events = without(expiry_story(), Seen, "wait/0")
    assert broken([*events, Seen(WATCHER, expiry.EXPIRED, 0, 2, "wait/0", 9_000, 0, "expired")]) == {
        "expired out of order"
    }


def test_a_reader_that_skips_too_little_or_too_much_is_found() -> None:
    events = expiry_story()
    assert broken([Seen("skipper", expiry.OFFERS, 0, 0, "offers/0", 1_101), *events]) == {"expired offer"}
    assert broken([Seen("skipper", expiry.OFFERS, 0, 0, "offers/0", 1_100), *events]) == set()
    more = Sent(expiry.OFFERS, "offers/2", "ok", "k0", 0, 2, 0, 1, 700)
    last = Sent(expiry.OFFERS, "offers/3", "ok", "k0", 0, 3, 0, 1, LASTING_MS)
    assert broken([*events, more, last, Seen("skipper", expiry.OFFERS, 0, 3, "offers/3", 699)]) == {
        "offer lost",
        "offer passed over",
    }
    assert broken([*events, more, last, Seen("skipper", expiry.OFFERS, 0, 3, "offers/3", 700)]) == set()


def test_rows_of_a_key_out_of_order_are_found() -> None:
    rows = [Sent(outbox.FEATURE, f"transfers/{n}", "ok", "k0") for n in range(2)]
    seen = [Seen(WATCHER, outbox.TOPIC, 0, offset, f"transfers/{n}") for offset, n in enumerate((1, 0))]
    assert broken([*rows, *seen]) == {"rows out of order"}


def test_a_record_of_an_earlier_life_is_found() -> None:
    old = seen_life(churn.ASSIGNED, 0, 1)
    assert "old life" in broken([*churn_story(), old])
    late = Sent(churn.LATE, "churn-a/0/late-0", "ok", due_ms=50)
    assert "old life" in broken([*churn_story(), late, Seen(churn.ASSIGNED, "churn-a", 0, 2, late.name)])


def test_a_record_of_a_life_that_one_reader_lacks_is_found() -> None:
    events = [event for event in churn_story() if event != seen_life(churn.ASSIGNED, 1, 1)]
    assert broken(events) == {"life lost"}


def test_a_journal_is_stored_and_read_again(tmp_path: Path) -> None:
    events = [event for story in STORIES.values() for event in story()]
    journal = Journal(tmp_path / "journal.jsonl", events)
    journal.close()
    assert Journal.load(tmp_path / "journal.jsonl").events == events


def test_what_came_before_its_acknowledgement_is_not_awaited() -> None:
    awaited = Awaited()
    awaited.came("early")
    awaited.expect("early")
    awaited.expect("late")
    awaited.expect("dropped")
    awaited.drop("dropped")
    assert awaited.missing() == ["late"]
    awaited.came("late")
    assert awaited.missing() == []
