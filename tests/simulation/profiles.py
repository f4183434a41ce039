"""Fault schedules by name: each draws the options of one run from its seed (reliability, section 9).

A profile that finds no planted bug is not a test; test_planted_bugs lists the profile for each bug.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Everything that a seed decides about one run. Rates are events per virtual second and cluster."""

    brokers: int = 3
    min_insync_replicas: int = 2
    producers: int = 2
    consumers: int = 1
    produce_pause_ms: float = 25
    chaos_s: float = 12
    converge_s: float = 12

    delay_ms: float = 2
    loss: float = 0
    duplicate: float = 0
    delay_tail: float = 0
    delay_tail_ms: float = 1000
    cut_rate: float = 0
    cut_ms: float = 1000
    clog_rate: float = 0
    clog_ms: float = 0

    crash_rate: float = 0
    crash_leader: float = 0.5
    """Share of crashes aimed at the leader."""
    down_ms: float = 600
    fence_rate: float = 0
    """Sessions broken without a cause: elections while the old leader runs."""
    pause_rate: float = 0
    pause_ms: float = 2000
    controller_crash_rate: float = 0
    controller_down_ms: float = 500
    controller_pause_rate: float = 0
    controller_pause_ms: float = 1500
    late_states: float = 0
    """Share of partition states that also reach the next life of their replica."""

    sync_ms: float = 0.5
    slow_sync: float = 0
    slow_sync_ms: float = 500
    unsynced_survives: float = 0.5
    """Chance that part of the unsynced tail survives a crash."""
    writes_through: bool = False
    """Appended entries count as durable at once, and survive a crash: a relaxed flush, or such a disk."""
    wipe_rate: float = 0
    """A replica crashes, and its folder is lost or damaged: the next life begins with an empty log."""
    restore: float = 0
    """Share of lost folders that an operator restores later, even over a newer folder."""
    full_rate: float = 0
    """A replica's disk accepts no writes for a while."""
    full_ms: float = 1500
    refuse_rate: float = 0
    """A replica's disk refuses records for seconds, and accepts all other writes."""
    refuse_ms: float = 4000
    hang_rate: float = 0
    """A replica's disk completes no sync for seconds, and accepts all writes."""
    hang_ms: float = 4000
    sync_time_max_ms: int = 10_000
    retention: float = 0
    """How often a replica drops all but its newest committed entries."""

    session_timeout_ms: int = 800
    registration_grace_ms: int = 1500
    initial_leader_wait_ms: int = 300
    lag_max_ms: int = 800
    fetch_wait_ms: int = 150
    acks_one: float = 0
    """Share of producers that use acks=1 only."""

    elect_rate: float = 0
    """A command, or the controller's clock, starts a preferred leader election."""
    stop_rate: float = 0
    """A broker is stopped on purpose, with or without force, and restarted later."""
    spares: int = 0
    """Brokers in addition to the ``brokers`` that hold the partition at first."""
    reassign_rate: float = 0
    """A command moves the partition, cancels the move, or removes a replica and adds it again at once."""
    metadata_ms: float = 20
    """Longest delay of metadata to brokers; each has a pace of its own."""
    delete_rate: float = 0
    """A command deletes records: some, all, or more than are committed."""
    survivor: bool = False
    """When the faults are over, all replicas go down but one, which must serve every acknowledged record."""
    topic_min_insync_replicas: int = 0
    """The topic's setting, where the change has not reached the replicas yet; 0 = the same as theirs."""


def _calm(draw: random.Random) -> Faults:
    brokers = draw.choice((3, 3, 3, 2, 4, 5, 1))
    return Faults(
        brokers=brokers,
        min_insync_replicas=min(brokers, draw.choice((1, 2, 2, 2, 3 if brokers > 3 else 2))),
        producers=draw.randint(1, 3),
        consumers=draw.randint(1, 2),
        produce_pause_ms=draw.choice((8, 25, 80)),
        fetch_wait_ms=draw.choice((20, 150, 400)),
        lag_max_ms=draw.choice((200, 800, 2000)),
        session_timeout_ms=draw.choice((300, 800, 2000)),
    )


def _three(draw: random.Random) -> Faults:
    return replace(_calm(draw), brokers=3, min_insync_replicas=draw.choice((1, 2, 2)))


def _swarm(draw: random.Random) -> Faults:
    def sometimes(strength: float) -> float:
        return draw.random() * strength if draw.random() < 0.5 else 0.0

    return replace(
        _calm(draw),
        delay_ms=draw.choice((0.5, 2, 10)),
        loss=sometimes(0.2),
        duplicate=sometimes(0.3),
        delay_tail=sometimes(0.2),
        cut_rate=sometimes(1.5),
        cut_ms=draw.choice((300, 1500)),
        clog_rate=sometimes(1.0),
        clog_ms=draw.choice((20, 300)),
        crash_rate=sometimes(1.5),
        down_ms=draw.choice((50, 600, 2000)),
        fence_rate=sometimes(1.0),
        pause_rate=sometimes(0.6),
        controller_crash_rate=sometimes(0.4),
        late_states=sometimes(0.5),
        sync_ms=draw.choice((0.1, 0.5, 5)),
        slow_sync=sometimes(0.2),
        retention=sometimes(0.5),
        acks_one=sometimes(0.5),
        # The seeds of test_smoke rely on these being drawn last.
        wipe_rate=sometimes(0.2),
        full_rate=sometimes(0.4),
        controller_pause_rate=sometimes(0.4),
        elect_rate=sometimes(1.0),
        stop_rate=sometimes(0.4),
        delete_rate=sometimes(1.5),
        writes_through=draw.random() < 0.25,
    )


def _zombie(draw: random.Random) -> Faults:
    return replace(
        _three(draw),
        pause_rate=0.8,
        pause_ms=draw.choice((1500, 4000)),
        fence_rate=draw.choice((0.0, 0.5)),
        session_timeout_ms=300,
        clog_rate=0.5,
        clog_ms=draw.choice((50, 400)),
        loss=draw.choice((0.0, 0.05)),
        lag_max_ms=draw.choice((200, 800)),
    )


def _stale(draw: random.Random) -> Faults:
    return replace(
        _three(draw),
        duplicate=draw.uniform(0.2, 0.6),
        delay_tail=0.2,
        delay_tail_ms=draw.choice((300, 1000)),
        fence_rate=draw.choice((1.0, 2.0)),
        crash_rate=draw.choice((0.0, 0.5)),
        produce_pause_ms=draw.choice((8, 25)),
        lag_max_ms=draw.choice((200, 800)),
    )


def _reboot(draw: random.Random) -> Faults:
    return replace(
        _three(draw),
        crash_rate=draw.choice((1.5, 3.0)),
        down_ms=draw.choice((20, 200)),
        sync_ms=draw.choice((0.5, 50)),
        slow_sync=0.3,
        late_states=0.5,
        delay_tail=0.1,
        unsynced_survives=draw.choice((0.0, 0.5)),
    )


def _last_man(draw: random.Random) -> Faults:
    return replace(
        _three(draw),
        min_insync_replicas=draw.choice((1, 1, 2)),
        cut_rate=2.0,
        cut_ms=draw.choice((1000, 3000)),
        lag_max_ms=200,
        crash_rate=1.0,
        crash_leader=0.9,
        down_ms=draw.choice((50, 1500)),
        sync_ms=draw.choice((0.5, 20)),
        slow_sync=0.2,
        unsynced_survives=0.2,
    )


def _eligible(draw: random.Random) -> Faults:
    """The ISR repeatedly falls below the minimum, and replicas that left it lead: with their logs, and without."""
    return replace(
        _three(draw),
        min_insync_replicas=draw.choice((2, 2, 1)),
        topic_min_insync_replicas=2,
        producers=3,
        produce_pause_ms=8,
        cut_rate=draw.choice((1.0, 2.5)),
        cut_ms=draw.choice((500, 2000)),
        lag_max_ms=200,
        session_timeout_ms=300,
        crash_rate=draw.choice((0.8, 2.0)),
        crash_leader=draw.choice((0.3, 0.9)),
        down_ms=draw.choice((50, 1500)),
        wipe_rate=draw.choice((0.0, 0.4)),
        elect_rate=draw.choice((0.0, 1.0)),
        stop_rate=draw.choice((0.0, 0.5)),
        controller_crash_rate=draw.choice((0.0, 0.4)),
        slow_sync=0.1,
        unsynced_survives=0.2,
        delete_rate=draw.choice((0.0, 1.0, 4.0)),
    )


def _reassign(draw: random.Random) -> Faults:
    """Replicas are added, removed and added again, often before the brokers have learned of the first change."""
    return replace(
        _three(draw),
        brokers=draw.choice((2, 3, 3)),
        spares=draw.choice((1, 2)),
        reassign_rate=draw.choice((1.0, 3.0)),
        metadata_ms=draw.choice((20, 300, 1500)),
        produce_pause_ms=8,
        duplicate=draw.choice((0.0, 0.3)),
        delay_tail=draw.choice((0.0, 0.2)),
        delay_tail_ms=800,
        crash_rate=draw.choice((0.0, 0.5)),
        fence_rate=draw.choice((0.0, 0.5)),
        cut_rate=draw.choice((0.0, 1.0)),
        cut_ms=600,
        pause_rate=draw.choice((0.0, 0.3)),
        pause_ms=1000,
        controller_crash_rate=draw.choice((0.0, 0.5)),
        stop_rate=draw.choice((0.0, 0.2)),
        elect_rate=draw.choice((0.0, 0.5)),
        lag_max_ms=draw.choice((200, 800)),
    )


def _controller(draw: random.Random) -> Faults:
    return replace(
        _three(draw),
        controller_crash_rate=draw.choice((0.6, 1.5)),
        controller_down_ms=draw.choice((50, 1000)),
        fence_rate=0.8,
        crash_rate=draw.choice((0.3, 1.0)),
        lag_max_ms=200,
        cut_rate=draw.choice((0.0, 1.0)),
        slow_sync=0.1,
        controller_pause_rate=draw.choice((0.0, 0.3, 0.8)),
        controller_pause_ms=draw.choice((400, 2000)),
    )


def _swizzle(draw: random.Random) -> Faults:
    return replace(_three(draw), clog_rate=3.0, clog_ms=1000, cut_rate=1.5, cut_ms=800, lag_max_ms=200)


def _sticky_lag(draw: random.Random) -> Faults:
    """Slow links and short timeouts: followers always lag a little, in the ISR and out of it."""
    return replace(
        _three(draw),
        min_insync_replicas=2,
        producers=3,
        delay_ms=draw.choice((30, 100)),
        delay_tail=draw.choice((0.0, 0.1)),
        delay_tail_ms=300,
        lag_max_ms=draw.choice((100, 200)),
        fence_rate=3.0,
        produce_pause_ms=8,
        fetch_wait_ms=150,
        chaos_s=8,
    )


def _retention(draw: random.Random) -> Faults:
    """Logs lose their old records all the time, while cut-off leaders return with tails that only they have."""
    return replace(
        _three(draw),
        min_insync_replicas=1,
        producers=3,
        acks_one=0.9,
        produce_pause_ms=5,
        delay_ms=1,
        retention=8.0,
        cut_rate=3.0,
        cut_ms=1200,
        session_timeout_ms=300,
        lag_max_ms=800,
        chaos_s=8,
        converge_s=5,
        delete_rate=draw.choice((0.0, 2.0)),
    )


def _disk(draw: random.Random) -> Faults:
    """Folders vanish, fill up and are slow, and processes die between opening a new folder and reporting it."""
    return replace(
        _three(draw),
        wipe_rate=draw.choice((0.1, 0.3)),
        full_rate=draw.choice((0.0, 0.4)),
        full_ms=draw.choice((300, 1500)),
        crash_rate=draw.choice((0.3, 1.0, 2.0)),
        down_ms=draw.choice((20, 300)),
        slow_sync=0.1,
        lag_max_ms=draw.choice((200, 800)),
        delay_tail=draw.choice((0.0, 0.2)),
        delay_tail_ms=500,
        duplicate=draw.choice((0.0, 0.2)),
        controller_crash_rate=draw.choice((0.0, 0.5)),
        retention=draw.choice((0.0, 2.0)),
        restore=draw.choice((0.0, 0.5)),
        delete_rate=draw.choice((0.0, 1.0)),
        refuse_rate=draw.choice((0.0, 0.3, 0.8)),
        refuse_ms=draw.choice((1500, 4000)),
        pause_rate=draw.choice((0.0, 0.4)),
    )


def _survivor(draw: random.Random) -> Faults:
    """After some faults, under load, only one replica is left; it may restart too."""
    brokers = draw.choice((2, 3, 3, 3, 4))
    return replace(
        _calm(draw),
        brokers=brokers,
        min_insync_replicas=2 if brokers < 4 else 3,
        producers=3,
        produce_pause_ms=draw.choice((5, 25)),
        acks_one=draw.choice((0.0, 0.5)),
        delay_ms=draw.choice((0.5, 2, 10)),
        chaos_s=draw.choice((3, 6)),
        crash_rate=draw.choice((0.0, 0.5, 1.5)),
        down_ms=draw.choice((50, 600)),
        cut_rate=draw.choice((0.0, 1.0)),
        cut_ms=600,
        lag_max_ms=draw.choice((200, 800)),
        session_timeout_ms=draw.choice((300, 800)),
        controller_crash_rate=draw.choice((0.0, 0.4)),
        stop_rate=draw.choice((0.0, 0.3)),
        elect_rate=draw.choice((0.0, 0.5)),
        delete_rate=draw.choice((0.0, 0.5)),
        slow_sync=draw.choice((0.0, 0.2)),
        duplicate=draw.choice((0.0, 0.3)),
        unsynced_survives=draw.choice((0.0, 0.5)),
        survivor=True,
    )


def _hanging(draw: random.Random) -> Faults:
    """Disks complete no sync for seconds; their leaders must give way to replicas that can sync."""
    return replace(
        _three(draw),
        min_insync_replicas=draw.choice((1, 2)),
        hang_rate=draw.choice((0.2, 0.5)),
        hang_ms=draw.choice((2500, 6000)),
        sync_time_max_ms=draw.choice((300, 600)),
        lag_max_ms=draw.choice((200, 800)),
        acks_one=draw.choice((0.0, 0.5)),
        crash_rate=draw.choice((0.0, 0.3)),
        crash_leader=0.1,
        down_ms=50,
        pause_rate=draw.choice((0.0, 0.2)),
        pause_ms=1000,
        fence_rate=draw.choice((0.0, 0.2)),
        session_timeout_ms=2000,
    )


def _quiet(draw: random.Random) -> Faults:
    return _calm(draw)


PROFILES: dict[str, Callable[[random.Random], Faults]] = {
    "swarm": _swarm,
    "zombie": _zombie,
    "stale": _stale,
    "reboot": _reboot,
    "last-man": _last_man,
    "controller": _controller,
    "swizzle": _swizzle,
    "sticky-lag": _sticky_lag,
    "retention": _retention,
    "disk": _disk,
    "eligible": _eligible,
    "reassign": _reassign,
    "survivor": _survivor,
    "hanging": _hanging,
    "quiet": _quiet,
}
DEFAULT = "default"
_ROTATION = ("swarm", "zombie", "swarm", "stale", "swarm", "reboot", "swarm", "last-man", "swarm", "controller")
_ROTATION_TAIL = ("swarm", "swizzle", "swarm", "sticky-lag", "swarm", "retention", "swarm", "disk")
_ROTATION_END = ("swarm", "eligible", "swarm", "reassign", "swarm", "survivor", "swarm", "hanging")


def profile_of(name: str, seed: int) -> str:
    """Return the profile of a seed: ``default`` gives half of the seeds to swarm and deals the rest out."""
    if name == DEFAULT:
        rotation = _ROTATION + _ROTATION_TAIL + _ROTATION_END
        return rotation[seed % len(rotation)]
    return name


def draw_faults(name: str, seed: int) -> Faults:
    """Return the options of one run."""
    return PROFILES[profile_of(name, seed)](random.Random(seed * 1_000_003 + 17))
