"""What a seed of a profile draws: the size of the cluster, its settings, the clients and the fault rates."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from raylog.core.configuration.config import SLEEP_KEY
from raylog.core.metadata.entries import AWAKE_KEY

if TYPE_CHECKING:
    from tests.simulation.whole.parts.part import Part

WHOLE: Final = "whole"
"""Faults of all kinds, anywhere."""
MINORITY: Final = "whole-minority"
"""One node is lost for nearly all of the run, without other faults: everything must keep working."""
DISK: Final = "whole-disk"
"""Faults of all kinds on virtual disks, which lose unsynced data with the power, fill up, slow down and hang.

In every third seed the disk of one node is full, slow or hanging for nearly all of the run, without other faults.
"""
VOTERS: Final = "whole-voters"
"""Two controllers at a time, clients on both sides of a split network, partitions with one replica (in sync, or at
all)."""
LAST_MAN: Final = "whole-last-man"
"""The last replica in sync is lost with its node, and eligible ones return."""
OPERATOR: Final = "whole-operator"
"""An operator stops and starts brokers; topics with a relaxed flush and with unclean elections; clients on a broker's
host, which read its segment files."""
SLEEPERS: Final = "whole-sleepers"
"""Partitions that fall asleep after a second or two of silence, and clients that pause for longer than that."""
DOZERS: Final = "whole-dozers"
"""Replicas whose processes are stopped after less than a second of rest, and in half of the runs partitions that sleep;
clients that pause for longer; faults in each step of a doze."""
COMPACTION: Final = "whole-compaction"
"""Compacted topics, whose replicas clean their logs often, some slowly, some on virtual disks."""
TRANSACTIONS: Final = "whole-transactions"
"""Producers in transactions, copies of what a group consumes with its offsets, readers of committed records; faults of
all kinds, and of transaction coordinators and clients while markers are written."""
ACCOUNTS: Final = "whole-transactions-compacted"
"""The same with a compacted topic in the transactions, and with coordinators' logs that are cleaned as often as that;
some on virtual disks. At the end removals and markers are forgotten, and what has a cleaned log is restarted."""
HALVES: Final = "whole-halves"
"""Half messages and delayed records; faults of all kinds, in half of the runs on virtual disks. The senders stop at any
step, and checkers decide then."""
QUEUES: Final = "whole-queues"
"""Two groups that work on a topic as a queue, one of them in the order of keys; faults of all kinds, and of the leaders
of the queue, of its states and of its dead letters."""
FORWARDING: Final = "whole-forwarding"
"""Records that expire, circles of dead letters, redrives; faults of all kinds, half of the runs on virtual disks."""
EVERYTHING: Final = "whole-everything"
"""A handful of features drawn at random (``features.py``), mixed in one cluster; faults of all kinds."""
DEPOSING_SHARE: Final = 0.3
RENEWING_SHARE: Final = 0.5
"""Shares of runs with transactions in which controllers are deposed without knowing it, and topics created again."""
WHOLE_PROFILES: Final = (
    WHOLE,
    MINORITY,
    DISK,
    VOTERS,
    LAST_MAN,
    OPERATOR,
    SLEEPERS,
    DOZERS,
    COMPACTION,
    TRANSACTIONS,
    ACCOUNTS,
    HALVES,
    QUEUES,
    FORWARDING,
    EVERYTHING,
)

THIN: Final = "thin"
"""A topic that acknowledges with one replica in sync."""
SINGLE: Final = "single"
"""A topic of one replica."""
LOOSE: Final = "loose"
"""A topic that acknowledges before it syncs. Killed processes lose nothing; only a power cut on a virtual disk does."""
LOOSE_FLUSH_MS: Final = 400
UNCLEAN: Final = "unclean"
"""A topic that lets replicas lead that are not in sync, so that acknowledged records may be lost."""
TOPICS: Final[dict[str, tuple[int, dict[str, str]]]] = {
    THIN: (3, {"min.insync.replicas": "1"}),
    SINGLE: (1, {}),
    LOOSE: (3, {"flush.messages": "40", "flush.ms": str(LOOSE_FLUSH_MS)}),
    UNCLEAN: (3, {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}),
}
"""Replication factor and settings of the topics that some profiles have besides the steady ones."""
BRIEF: Final = "archive"
"""A compacted topic that forgets removed keys so soon that a replica that was away does not learn of them."""
TABLES: Final[dict[str, dict[str, str]]] = {
    "table": {"segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"},
    BRIEF: {"segment.bytes": "4000", "cleanup.policy": "compact,delete", "delete.retention.ms": "1000"},
}
"""Compacted topics with three replicas, and their settings besides."""
ONE_LOST: Final[dict[str, Any]] = {
    "loses_one": True,
    "fault_pause_s": 0.0,
    "work_s": 40.0,
    "send_pause_s": 1.0,
    "members": 2,
}
"""The plan of a run that loses one node, or one disk, and has no other faults."""
CLIENTS: Final[dict[str, Any]] = {"has_static_members": True, "seek_share": 0.03}
"""What clients do besides in profiles without faults of disks and voters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run. Durations are virtual seconds."""

    brokers: int
    voters: tuple[int, ...]
    replication_factor: int
    topics: int
    partitions_max: int
    producers: int
    members: int
    work_s: float
    """How long clients work under faults."""
    calm_s: float
    """How long they continue after the heal."""
    fault_pause_s: float
    """Mean time between two faults; 0 = none."""
    send_pause_s: float
    power_cuts: bool
    loses_one: bool = False
    """Whether one node is lost, or with virtual disks one disk, without other faults."""
    loses_last_man: bool = False
    """Whether that node has the last replicas in sync."""
    schemes: tuple[str, ...] = ()
    """Methods of ``schemes.py`` that join the nemesis's other faults."""
    topics_besides: tuple[str, ...] = ()
    """Names of :data:`TOPICS`."""
    client_hosts: int = 1
    has_static_members: bool = False
    is_cooperative: bool = False
    """Whether members of groups read on while their group rebalances."""
    has_consumer_protocol: bool = False
    """Whether the coordinator assigns, member by member (KIP-848)."""
    has_default_protocol: bool = False
    """Whether members leave the protocol open, so that their group has the consumer protocol by default."""
    seek_share: float = 0.005
    """Share of polls of the reader that a seek follows."""
    is_operated: bool = False
    """Whether brokers are stopped and started, and clients read the files of a broker on their host."""
    sleeps: bool = False
    """Whether partitions fall asleep while the clients work."""
    stops_called_off_s: tuple[float, ...] = ()
    """When the whole cluster is about to stop, and does not."""
    dozes: bool = False
    """Whether the processes of replicas at rest are stopped."""
    tables: tuple[str, ...] = ()
    """Names of :data:`TABLES`."""
    tellers: int = 0
    """Clients that send in transactions; 0 = there are no transactions in this run."""
    renews_topic: bool = False
    """Whether transactions also write to a topic that is deleted and created again."""
    copiers: int = 0
    """Members of the group that copies what the tellers send."""
    accounts: int = 0
    """Partitions of a compacted topic that the tellers and copiers write to; 0 = there is none."""
    transaction_timeout_s: float = 0.0
    """After so long a transaction is aborted by its coordinator."""
    forgets_producers_s: float = 0.0
    """After so long without use producers and transactional ids are forgotten, and offsets after a minute; 0 = after
    days."""
    renews: bool = False
    """Whether a topic is deleted and created again, over and over, while clients use it."""
    expirers: int = 0
    """Clients that send records which expire; 0 = there are none in this run."""
    payers: int = 0
    """Clients that send half messages, and check them; 0 = there are none in this run."""
    delayers: int = 0
    """Clients that send delayed records; 0 = there are none in this run."""
    workers: int = 0
    """Members of each of two groups that work on a queue; 0 = there is none in this run."""
    queue_lock_ms: int = 0
    """How long its records are locked."""
    features: tuple[str, ...] = ()
    """The names of what is mixed in this run, in ``whole-everything``."""
    parts: tuple[type[Part], ...] = ()
    """What the features bring that are in a file of their own."""
    visits: int = 8
    """How often what comes back every other day comes, in a run of weeks; 28 of them are eight weeks."""
    disks: bool = False
    """Whether each node has a virtual disk; else losing power loses no file."""
    config: dict[str, str] = field(default_factory=dict)
    faults_max: int = sys.maxsize
    """How many faults the nemesis draws."""
    spared: tuple[int, ...] = ()
    """The numbers of those, from 0 on, that do not happen."""
    is_detailed: bool = False
    """Whether the story has each call of each client."""

    @property
    def comes_to_rest(self) -> bool:
        """Whether all replicas are at rest at once when no client wants anything: no role and no cleaner has a look."""
        has_roles = self.delayers or self.expirers or self.workers or self.tables or self.accounts
        return not has_roles and all(part.comes_to_rest for part in self.parts)

    def producer_options(self, chance: random.Random) -> dict[str, Any]:
        """Draw a producer's configuration."""
        return {
            "linger_ms": chance.choice([None, 0, 5, 20]),
            "batch_size": chance.choice([200, 2_000, 16_384]),
            "compression_type": chance.choice(["none", "none", "lz4", "gzip"]),
            "retry_backoff_ms": chance.choice([20, 100]),
            "metadata_max_age_ms": chance.choice([1_000, 30_000]),
        }

    def consumer_options(self, chance: random.Random) -> dict[str, Any]:
        """Draw a group member's configuration."""
        session_ms = chance.choice([2_000, 6_000])
        assigns: dict[str, Any] = {
            "partition_assignment_strategy": "cooperative-sticky" if self.is_cooperative else "range"
        }
        if self.has_default_protocol:
            assigns = {}
        elif self.has_consumer_protocol:
            assigns = {"group_protocol": "consumer", "group_remote_assignor": chance.choice([None, "uniform", "range"])}
        return {
            **assigns,
            "session_timeout_ms": session_ms,
            "heartbeat_interval_ms": session_ms // 4,
            "max_poll_records": chance.choice([1, 10, 500]),
            "fetch_max_wait_ms": chance.choice([20, 500]),
            "fetch_min_bytes": chance.choice([1, 500]),
            "max_partition_fetch_bytes": chance.choice([500, 1_048_576]),
            "metadata_max_age_ms": chance.choice([1_000, 30_000]),
        }


def draw(profile: str, seed: int) -> Plan:
    """Return the plan of a seed."""
    plan = replace(_draw(profile, seed), is_cooperative=seed % 2 == 0, has_default_protocol=seed % 4 == 3)
    if profile == WHOLE:
        return replace(plan, **CLIENTS)
    if profile == MINORITY:
        return replace(plan, **ONE_LOST, **CLIENTS)
    if profile == DISK:
        plan = replace(plan, disks=True, power_cuts=True, config={**plan.config, "replica.sync.time.max.ms": "2000"})
        return replace(plan, **ONE_LOST) if seed % 3 == 0 else plan
    if profile == VOTERS:
        return _with_voters_at_odds(plan)
    if profile == OPERATOR:
        schemes, besides = ("lose_unclean",), (LOOSE, UNCLEAN)
        calm = replace(plan, is_operated=True, schemes=schemes, topics_besides=besides, power_cuts=True)
        return replace(calm, work_s=plan.work_s + 12.0, fault_pause_s=max(0.7, plan.fault_pause_s))
    if profile == SLEEPERS:
        return _with_sleepers(plan, seed)
    if profile == DOZERS:
        return _with_dozers(plan, seed)
    if profile == COMPACTION:
        return _with_tables(plan, seed)
    if profile == TRANSACTIONS:
        return _with_transactions(plan, seed)
    if profile == ACCOUNTS:
        return _with_accounts(_with_transactions(plan, seed), seed)
    if profile == HALVES:
        return _with_halves(plan, seed)
    if profile == QUEUES:
        return _with_queues(plan, seed)
    if profile == FORWARDING:
        return _with_forwarding(plan, seed)
    if profile == LAST_MAN:
        calm = replace(_draw(MINORITY, seed), **ONE_LOST)
        return replace(calm, loses_last_man=True, partitions_max=2, work_s=calm.work_s + 10.0)
    return plan


def _with_voters_at_odds(plan: Plan) -> Plan:
    return replace(
        plan,
        schemes=("split", "lose_contact", "depose_paused", "lose_replies", "lose_single"),
        topics_besides=(THIN, SINGLE),
        client_hosts=2,
        producers=4,
        work_s=plan.work_s + 14.0,
        fault_pause_s=max(0.7, plan.fault_pause_s),
        power_cuts=True,
    )


def _with_sleepers(plan: Plan, seed: int) -> Plan:
    chance = random.Random(f"sleep {seed}")
    sleep = {
        "replica.sleep.after.ms": str(chance.choice([1_000, 2_500])),
        "offsets.topic.num.partitions": str(chance.choice([2, 5])),
    }
    if seed % 3 == 2:  # partitions sleep to make room, and for no other reason
        sleep |= {AWAKE_KEY: str(chance.choice([4, 6])), SLEEP_KEY: "60000"}
    plan = replace(
        plan,
        config={**plan.config, **sleep},
        schemes=("kill_of_sleeper", "strike_sleeper", "strand_broker"),
        topics_besides=(SINGLE,),
    )
    return replace(
        plan,
        topics=2,
        partitions_max=3,
        send_pause_s=chance.choice([3.0, 8.0]),
        fault_pause_s=chance.choice([0.7, 2.0, 6.0]),
        work_s=plan.work_s + 25.0,
        power_cuts=True,
        sleeps=True,
        stops_called_off_s=_stops_called_off(seed),
    )


def _stops_called_off(seed: int) -> tuple[float, ...]:
    """In half of the worlds two, while clients work."""
    chance = random.Random(f"stop {seed}")
    return (chance.uniform(2.0, 10.0), chance.uniform(12.0, 25.0)) if chance.random() < 0.5 else ()


def _with_dozers(plan: Plan, seed: int) -> Plan:
    chance = random.Random(f"doze {seed}")
    config = {**plan.config, "replica.doze.after.ms": str(chance.choice([100, 300, 800]))}
    sleeps = chance.random() < 0.5
    if sleeps:
        config["replica.sleep.after.ms"] = str(chance.choice([1_500, 3_000]))
    return replace(
        plan,
        config=config,
        schemes=("kill_of_sleeper", "strike_sleeper") if sleeps else (),
        topics_besides=(SINGLE, LOOSE),
        topics=chance.choice([1, 2]),
        producers=2,
        members=chance.choice([2, 3]),
        send_pause_s=chance.choice([2.0, 5.0, 8.0]),
        fault_pause_s=chance.choice([1.0, 2.0, 6.0]),
        work_s=plan.work_s + 20.0,
        power_cuts=True,
        sleeps=sleeps,
        stops_called_off_s=_stops_called_off(seed) if sleeps else (),
        dozes=True,
    )


def with_cleaners(plan: Plan, chance: random.Random) -> Plan:
    """Have logs cleaned often, at a drawn pace, and in half of the worlds on virtual disks."""
    cleaner = {
        "log.cleaner.backoff.ms": str(chance.choice([100, 500, 2_000])),
        "log.cleaner.io.max.bytes.per.second": str(chance.choice([20_000, 100_000, 1 << 40])),
    }
    disks = chance.random() < 0.5
    if disks:
        cleaner["replica.sync.time.max.ms"] = "2000"
    return replace(plan, config={**plan.config, **cleaner}, disks=disks or plan.disks, power_cuts=True)


def _with_accounts(plan: Plan, seed: int) -> Plan:
    chance = random.Random(f"accounts {seed}")
    return replace(with_cleaners(plan, chance), accounts=chance.choice([1, 2]))


def _with_tables(plan: Plan, seed: int) -> Plan:
    chance = random.Random(f"compaction {seed}")
    plan = with_cleaners(plan, chance)
    return replace(
        plan,
        tables=tuple(TABLES),
        topics=1,
        partitions_max=1,
        producers=2,
        members=2,
        send_pause_s=chance.choice([0.3, 1.0]),
        fault_pause_s=chance.choice([0.5, 1.0, 3.0]),
        work_s=plan.work_s + 10.0,
    )


def _with_transactions(plan: Plan, seed: int) -> Plan:
    chance = random.Random(f"transactions {seed}")
    config = {**plan.config, "transaction.state.log.num.partitions": str(chance.choice([1, 2]))}
    schemes = ("strike_place", "strike_place", "kill_transaction_coordinator", "pause_transaction_coordinator")
    deposes = random.Random(f"deposed controllers {seed}").random() < DEPOSING_SHARE
    return replace(
        plan,
        config=config,
        schemes=(*schemes, "split", "depose_paused") if deposes else schemes,
        renews_topic=random.Random(f"renewed topics {seed}").random() < RENEWING_SHARE,
        topics=1,
        producers=1,
        members=1,
        tellers=chance.choice([2, 3]),
        copiers=chance.choice([1, 2, 3]),
        transaction_timeout_s=chance.choice([2.0, 6.0]),
        fault_pause_s=chance.choice([0.4, 1.0, 3.0]),
        work_s=plan.work_s + 12.0,
    )


def _with_halves(plan: Plan, seed: int) -> Plan:
    chance = random.Random(f"schedules {seed}")
    return replace(
        plan,
        topics=1,
        producers=1,
        members=1,
        delayers=1,
        payers=random.Random(f"halves {seed}").choice([1, 2, 3]),
        schemes=("strike_scheduler", "strike_scheduler"),
        disks=chance.random() < 0.5,
        fault_pause_s=chance.choice([0.4, 1.0, 3.0]),
        send_pause_s=chance.choice([0.1, 0.5]),
        work_s=plan.work_s + 12.0,
    )


def _with_queues(plan: Plan, seed: int) -> Plan:
    chance = random.Random(f"queues {seed}")
    return replace(
        plan,
        topics=1,
        producers=1,
        members=1,
        workers=chance.choice([1, 2, 3]),
        queue_lock_ms=chance.choice([1_000, 3_000]),
        schemes=("strike_queue", "strike_queue"),
        disks=chance.random() < 0.3,
        fault_pause_s=chance.choice([0.4, 1.0, 3.0]),
        send_pause_s=chance.choice([0.1, 0.5]),
        work_s=plan.work_s + 12.0,
    )


def _with_forwarding(plan: Plan, seed: int) -> Plan:
    chance = random.Random(f"forwarding {seed}")
    return replace(
        plan,
        topics=1,
        producers=1,
        members=1,
        expirers=chance.choice([1, 2, 3]),
        schemes=("strike_forwarder", "strike_forwarder"),
        disks=chance.random() < 0.5,
        fault_pause_s=chance.choice([0.4, 1.0, 3.0]),
        send_pause_s=chance.choice([0.1, 0.5]),
        work_s=plan.work_s + 12.0,
    )


SHARDED: Final = ("scheduled.topic.num.partitions", "share.coordinator.state.topic.num.partitions")
"""Settings of topics with the cluster's own state that may have one partition or several."""


def _draw(profile: str, seed: int) -> Plan:
    chance = random.Random(f"{profile} {seed}")
    brokers = chance.choice([3, 3, 3, 4, 5])
    voters = tuple(range(1, (5 if brokers == 5 else 3) + 1))
    session_ms = chance.choice([1_500, 4_000])
    config = {
        "broker.heartbeat.interval.ms": str(session_ms // 4),
        "broker.session.timeout.ms": str(session_ms),
        "replica.lag.time.max.ms": str(chance.choice([1_000, 3_000])),
        "group.min.session.timeout.ms": "1000",
        "offsets.topic.num.partitions": str(chance.choice([1, 2])),
        "leader.imbalance.check.interval.seconds": str(chance.choice([2, 20])),
        "metadata.log.max.record.bytes.between.snapshots": str(chance.choice([2_000, 20_000, 2_000_000])),
    }
    shards = random.Random(f"shards {profile} {seed}")
    config |= {key: str(shards.choice([1, 1, 3])) for key in SHARDED}
    return Plan(
        brokers=brokers,
        voters=voters,
        replication_factor=3,
        topics=chance.choice([1, 2]),
        partitions_max=chance.choice([2, 3]),
        producers=chance.choice([2, 3]),
        members=chance.choice([2, 3, 4]),
        work_s=chance.uniform(6.0, 16.0),
        calm_s=3.0,
        fault_pause_s=chance.choice([0.25, 0.7, 2.0]),
        send_pause_s=chance.choice([0.3, 1.0]),
        power_cuts=chance.random() < 0.5,
        config=config,
    )
