"""What a seed decides about one run of the group world: number of members, their timeouts, and the faults.

Rates are events per virtual second. Drawn by ``draw``, the profile ``rebalance-storm``, and by what derives from it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

_ALIKE = (("roundrobin", "range"),)
_DIFFERENT = (("range", "roundrobin"), ("roundrobin", "range"), ("sticky", "range", "roundrobin"), ("range", "sticky"))
_COOPERATIVE = (("cooperative-sticky",),)
_CHANGING = (
    (("range",), ("cooperative-sticky", "range")),
    (("cooperative-sticky",), ("cooperative-sticky", "range")),
)
"""The two rolling restarts by which a group becomes cooperative."""
LATE_MS = 1500
"""Longest extra delay of a message whose connection has broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFaults:
    """Everything that a seed decides about one run."""

    slots: int = 3
    """Slots for members; a slot has one member after another."""
    static_share: float = 0.3
    """Share of slots whose members have a static instance id."""
    shared_client_id: bool = False
    partitions: int = 4
    strategies: tuple[tuple[str, ...], ...] = (("range",),)
    """Each process draws one; all have an assignor in common."""
    odd_share: float = 0
    """Share of processes that support one assignor only, which others may not know; they end soon."""
    group_max_size: int = 10_000
    session_timeout_ms: int = 600
    rebalance_timeout_ms: int = 1200
    initial_rebalance_delay_ms: int = 100
    poll_ms: float = 40
    commit_ms: float = 150
    chaos_s: float = 10
    converge_s: float = 15

    delay_ms: float = 3
    delay_tail: float = 0
    delay_tail_ms: float = 1000
    break_rate: float = 0
    """A connection breaks; messages in flight may still arrive, but are not answered."""
    duplicate: float = 0
    """Share of requests, except commits, that arrive twice."""
    cut_rate: float = 0
    cut_ms: float = 600
    crash_rate: float = 0
    pause_rate: float = 0
    pause_ms: float = 1000
    leave_rate: float = 0
    double_rate: float = 0
    """A second process starts in a slot while the first one runs: with a static id, it takes over."""
    rejoin_rate: float = 0
    reset_rate: float = 0
    """A client outside the group resets its offsets, which is accepted only while the group is empty."""
    down_ms: float = 300
    coordinator_crash_rate: float = 0
    coordinator_move_rate: float = 0
    """A new coordinator starts while the old one runs."""
    coordinator_pause_rate: float = 0
    coordinator_pause_ms: float = 800
    coordinator_down_ms: float = 300
    zombie_ms: float = 500
    """How long a superseded coordinator is unaware of it."""
    append_ms: float = 5
    append_timeout: float = 0
    """Share of appends with an outcome unknown to the coordinator."""
    append_fails: float = 0
    """Share of appends that are refused: nothing is stored, and the coordinator reloads its groups."""
    outage_rate: float = 0
    """The leader of the offsets topic changes; appends in flight are kept, or truncated and retried."""
    outage_ms: float = 300
    retention_ms: int = 10**9
    """How long offsets of a group without members are kept."""
    ledger_rate: float = 0
    """Groups without members: clients commit, fetch or delete their offsets."""
    visit_rate: float = 0
    """Another group has a member for a moment."""
    probe_rate: float = 0
    """A client sends a request that must be refused, or removes a static member."""
    lull: bool = False
    """In the middle no new fault is injected for a while; earlier ones end by themselves."""
    batch_bytes_max: int = 1_000_000
    """Most bytes of rows that the log accepts at once, if there are several rows."""
    producers: int = 0
    """Transactional producers that commit offsets to groups of their own."""
    sleep_after_ms: int = -1
    """How long a coordinator without members is not used before it ends; -1 = never."""
    sleep_refused: float = 0.3
    """Share of its proposals to end that are refused."""
    compact: float = 0.05
    """How often an append is followed by compaction of the log."""

    @property
    def settles_ms(self) -> int:
        """Deadline for a group without new faults to have all its partitions read.

        By then earlier messages have arrived, including joins of dead processes, their sessions have expired, and a
        round has waited for them.
        """
        rounds_ms = self.session_timeout_ms + self.rebalance_timeout_ms + self.initial_rebalance_delay_ms
        return LATE_MS + rounds_ms + 1_000


def draw(seed: int) -> GroupFaults:
    """Return the options of one run of ``rebalance-storm``."""
    source = random.Random(seed * 1_000_003 + 71)

    def sometimes(strength: float) -> float:
        return source.random() * strength if source.random() < 0.6 else 0.0

    slots = source.choice((1, 2, 3, 3, 4, 5))
    return GroupFaults(
        slots=slots,
        static_share=source.choice((0.0, 0.3, 1.0)),
        shared_client_id=source.random() < 0.5,
        partitions=source.choice((1, 3, 4, 6)),
        strategies=source.choice((_ALIKE, (("range",), ("sticky", "range")), _DIFFERENT)),
        session_timeout_ms=source.choice((300, 600, 1200)),
        rebalance_timeout_ms=source.choice((500, 1200, 2500)),
        initial_rebalance_delay_ms=source.choice((0, 50, 300)),
        delay_ms=source.choice((1, 3, 20)),
        delay_tail=sometimes(0.1),
        break_rate=sometimes(2.0),
        duplicate=sometimes(0.2),
        cut_rate=sometimes(1.0),
        crash_rate=sometimes(2.0),
        pause_rate=sometimes(1.5),
        pause_ms=source.choice((400, 1500)),
        leave_rate=sometimes(2.0),
        double_rate=sometimes(1.0),
        rejoin_rate=sometimes(1.0),
        reset_rate=sometimes(1.0),
        down_ms=source.choice((50, 500)),
        coordinator_crash_rate=sometimes(0.8),
        coordinator_move_rate=sometimes(0.8),
        coordinator_pause_rate=sometimes(0.6),
        coordinator_down_ms=source.choice((50, 500)),
        zombie_ms=source.choice((50, 1500)),
        append_ms=source.choice((1, 5, 40)),
        append_timeout=sometimes(0.02),
        batch_bytes_max=source.choice((300, 1_000_000)),
        compact=source.choice((0.0, 0.05)),
        append_fails=sometimes(0.01),
        outage_rate=sometimes(0.5),
        outage_ms=source.choice((50, 1500)),
        retention_ms=source.choice((300, 1_000, 10**9)),
        ledger_rate=sometimes(4.0),
        lull=source.random() < 0.4,
        commit_ms=source.choice((150, 150, 1500)),
        odd_share=sometimes(0.1),
        group_max_size=source.choice((slots, slots + 1, 10_000)),
        visit_rate=sometimes(1.0),
        probe_rate=sometimes(4.0),
        sleep_after_ms=source.choice((-1, 60, 300)),
    )


def draw_cooperative(seed: int) -> GroupFaults:
    """Return the options of one run of ``rebalance-cooperative``: the same storms, and members that read on.

    Some groups are about to become cooperative.
    """
    source = random.Random(seed * 1_000_003 + 73)
    return replace(
        draw(seed),
        strategies=source.choice((_COOPERATIVE, _COOPERATIVE, _COOPERATIVE, *_CHANGING)),
        slots=source.choice((2, 3, 4)),
        partitions=source.choice((3, 4, 6)),
        group_max_size=10_000,
        poll_ms=source.choice((40, 40, 200)),
    )


def draw_transactions(seed: int) -> GroupFaults:
    """Return the options of one run of ``group-transactions``: the same storms, and producers with transactions."""
    source = random.Random(seed * 1_000_003 + 72)
    return replace(
        draw(seed),
        producers=source.randint(1, 4),
        retention_ms=10**9,
        slots=1,
        chaos_s=source.choice((5, 10)),
        duplicate=source.choice((0.0, 0.1, 0.3)),
        coordinator_crash_rate=source.random(),
        compact=source.choice((0.0, 0.05, 0.3)),
    )
