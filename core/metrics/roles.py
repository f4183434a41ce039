"""Figures of leader roles and their metrics: delayed records, queues, expired records, redrives. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raylog.base.ids import TopicPartition
from raylog.core.metrics.exposition import Family, Kind

ROLES: Final[Mapping[str, Mapping[str, tuple[Kind, str]]]] = {
    "scheduler": {
        "waiting": ("gauge", "Delayed records that are not due yet."),
        "parked": ("gauge", "Delayed records that are due and wait for a target that takes none."),
        "runs": ("gauge", "Sorted runs of delayed records in the log."),
        "replaced": ("counter", "Delayed records that a later one with their schedule id has replaced."),
        "log_bytes": ("gauge", "Bytes of `__scheduled` that are stored."),
        "unreadable": ("gauge", "Records that cannot be opened, as far as this leader has read; they are passed over."),
        "dead_bytes": ("gauge", "Of these, about how many nothing needs; more than half, and records are moved."),
        "moved": ("counter", "Records that were stored once more, so that the log behind them could be deleted."),
        "moved_bytes": ("counter", "Their bytes."),
        "freed_bytes": ("counter", "Bytes of `__scheduled` that were given back, since the leadership began."),
        "delivered": ("counter", "Delayed records that their targets have, since the leadership began."),
        "cancelled": ("counter", "Delayed records that were cancelled, since the leadership began."),
        "lateness_ms": ("gauge", "How late the last batch of delayed records came, in milliseconds."),
        "clock_step_ms": (
            "gauge",
            "How far the machine's clock was set from the time by which records are due; 0 = not.",
        ),
        "halves": ("gauge", "Half messages without decision."),
        "halves_unresolved": (
            "gauge",
            "Those of them that were checked as often as allowed: an administrator has to decide.",
        ),
        "halves_oldest_ms": ("gauge", "Age of the oldest half message without decision, in milliseconds."),
        "halves_committed": ("counter", "Half messages that were committed, since the leadership began."),
        "halves_rolled_back": ("counter", "Half messages that were rolled back."),
        "halves_checked": ("counter", "Checks of half messages that gave no decision."),
    },
    "queues": {
        "queues": ("gauge", "Groups that work on the partition as a queue."),
        "acquired": ("gauge", "Records that are locked for a member."),
        "waiting": ("gauge", "Records that are to be retried later."),
        "archiving": ("gauge", "Records that are on the way to the dead-letter topic."),
        "held": ("gauge", "Those of them whose letter is too large for the dead-letter topic."),
        "window": ("gauge", "Offsets between the first record that is not finished and the last one handed out."),
        "unfinished": ("gauge", "Those of them that are not finished; `queue.window.max` of a group at most."),
        "full": ("gauge", "Groups that get no further records before others are finished."),
        "handed_out": ("counter", "Records that were handed out, since the leadership began."),
        "handed_out_again": ("counter", "Those of them that had been handed out before."),
        "acknowledged": ("counter", "Records that members have finished."),
        "retried": ("counter", "Records that members want again later."),
        "postponed": ("counter", "Those of them whose copies wait in `__scheduled`."),
        "postpone_failures": ("counter", "Records that could not be copied to be retried late, at the first try."),
        "rejected": ("counter", "Records that members have rejected."),
        "reasons_dropped": ("counter", "Those whose reason was not kept, because the reasons of the queue have 4 MiB."),
        "locks_expired": ("counter", "Records whose lock ran out."),
        "dead_letters": ("counter", "Records that are in the dead-letter topic."),
        "dead_letters_without_body": ("counter", "Those of them without the body of their record."),
        "dead_letters_too_large": ("counter", "Dead letters that are too large for their topic, at the first try."),
        "dead_letters_undeliverable": (
            "counter",
            "Dead letters in `__undeliverable`, refused by their topic.",
        ),
        "dead_letters_dropped": ("counter", "Dead letters that were dropped, as `errors.deadletterqueue.on.failure`."),
        "dead_letter_failures": ("counter", "Batches that the dead-letter topic did not take; they are sent again."),
    },
    "expiry": {
        "expired": ("counter", "Expired records that were sent to the dead-letter topic."),
        "filed": ("counter", "Records with a time to live of their own that wait for its end in `__scheduled`."),
        "unreadable": ("counter", "Batches that do not open: where they expire, one letter is in `__undeliverable`."),
        "position": ("gauge", "Offset below which all records have expired and were sent on; -1 = nothing expires."),
        "holding": ("gauge", "Forwarders of the partition whose target takes nothing at the moment."),
    },
    "forwarding": {
        "forwarders": ("gauge", "Names under which forwarders and redrives are stored."),
        "unreadable": ("gauge", "Rows of `__forwarding` that cannot be read, and were passed over."),
        "redrives": ("gauge", "Redrives that run."),
        "redrives_unreadable": ("counter", "Batches that redrives have passed over, because they do not open."),
        "redrives_holding": ("gauge", "Partitions of redrives whose target takes nothing at the moment."),
    },
}
"""Kind and help of each figure, by kinds of roles; figures that are not here are left out."""


def roles_from_wire(row: object) -> dict[str, dict[str, int]]:
    """Read the figures of a replica's roles, by kind of role; raises ValueError for another shape."""
    if row is None:
        return {}
    if not isinstance(row, dict) or not all(isinstance(figures, dict) for figures in row.values()):
        raise ValueError(f"no figures of roles: {row!r:.80}")
    return {str(kind): {str(name): int(value) for name, value in figures.items()} for kind, figures in row.items()}


def role_families(broker: int, roles: Mapping[TopicPartition, Mapping[str, Mapping[str, int]]]) -> list[Family]:
    """Return the metrics of the roles of one broker's leaders, one sample per partition."""
    families: list[Family] = []
    with_roles = ((place, found) for place, found in roles.items() if found)  # few replicas have one
    ordered = sorted(with_roles, key=lambda item: item[0])
    for kind, figures in ROLES.items():
        having = [
            ({"broker": str(broker), "topic": place.topic, "partition": str(place.partition)}, found[kind])
            for place, found in ordered
            if kind in found
        ]
        for name, (sort, text) in figures.items():
            suffix = "_total" if sort == "counter" else ""
            family = Family(f"raylog_{kind}_{name}{suffix}", sort, text)
            family.samples.extend(("", labels, found[name]) for labels, found in having if name in found)
            families.append(family)
    return families
