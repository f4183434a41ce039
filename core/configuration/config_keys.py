"""Every configuration key of topics and of the cluster: name, type, default, legal values, meaning.

Kafka's names and, unless stated otherwise, Kafka's defaults. Values are read through ``core/configuration/config.py``.
"""

from __future__ import annotations

from typing import Final

from raylog.core.configuration.config_key import DAY_MS as _DAY_MS
from raylog.core.configuration.config_key import INT_MAX, LONG_MAX, Change, ConfigKey
from raylog.core.configuration.config_key import int_key as _int
from raylog.core.configuration.config_key import keys_of as _keys
from raylog.core.configuration.listeners import ADVERTISED, DEFAULT, LISTENERS
from raylog.core.configuration.queue_keys import QUEUE_KEYS
from raylog.core.configuration.time_keys import TIME_KEYS

OFFSETS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"
ON_FIRST_USE: Final = ("__forwarding", "__scheduled", "__share_state", "__undeliverable")
_LISTEN_INSTEAD: Final = (
    "Brokers read it before they know the cluster, and a wrong one could not be altered back: run `raylog stop`, then "
    "`raylog start --config {name}={value}`."
)
_FIXED_PARTITIONS: Final = "What is in it is found by its number of partitions, which stays."
_FIXED_REPLICAS: Final = "Move its partitions to other replicas with `raylog topic reassign`."

TOPIC_KEYS: Final = _keys(
    ConfigKey(
        name="cleanup.policy",
        kind="list",
        default="delete",
        choices=("delete", "compact"),
        doc="What happens to old segments: `delete` removes them by `retention.ms` and `retention.bytes`, `compact` "
        "keeps the last record of each key; `compact,delete` does both.",
    ),
    _int(
        "delete.retention.ms",
        _DAY_MS,
        0,
        "How long a record without a value stays in a compacted topic, so that readers learn that its key was removed.",
    ),
    _int(
        "max.compaction.lag.ms",
        LONG_MAX,
        1,
        "How long a record may wait until it is compacted, however little there is to gain.",
    ),
    _int(
        "min.compaction.lag.ms", 0, 0, "How long a record is kept in a compacted topic even if a newer one has its key."
    ),
    ConfigKey(
        name="min.cleanable.dirty.ratio",
        kind="ratio",
        default="0.5",
        doc="Share of a compacted partition's bytes that must be new since its last cleaning, for the next one.",
    ),
    ConfigKey(
        name="compression.type",
        kind="choice",
        default="producer",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        aliases={"none": "uncompressed"},
        doc="Compression of the batches that are appended from now on. `producer` stores them as they come, and the "
        "broker opens none. With another value the leader compresses again what comes in another form. That takes its "
        "process, per MiB of records, about 1 ms to decompress, and 1.6 ms with `lz4` or `snappy`, 3 ms with `zstd`, "
        "18 ms with `gzip`, in which it does nothing else; batches that come in that form cost nothing.",
    ),
    _int("file.delete.delay.ms", 60_000, 0, "How long a removed segment stays on disk for readers that have it open."),
    _int(
        "flush.messages",
        1,
        1,
        "Sync to disk after this many messages. 1 (the default here) acknowledges only what is on disk; Kafka's "
        f"default, {LONG_MAX}, acknowledges what is in the page cache.",
    ),
    _int("flush.ms", LONG_MAX, 0, "Sync to disk at the latest after this time."),
    _int(
        "index.interval.bytes",
        4096,
        1,
        "Bytes of log between two entries of the offset index of a new segment.",
        INT_MAX,
    ),
    _int("max.message.bytes", 1_048_588, 0, "Largest record batch accepted, compressed, with its header.", INT_MAX),
    _int(
        "message.timestamp.after.max.ms",
        3_600_000,
        0,
        "How far a timestamp may be ahead of the leader's clock; above that the batch is refused (InvalidTimestamp).",
    ),
    _int(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        0,
        "How far a timestamp may be behind the leader's clock; below that the batch is refused (InvalidTimestamp).",
    ),
    ConfigKey(
        name="message.timestamp.type",
        kind="choice",
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        doc="`CreateTime`: a record carries the time that its producer gave it. `LogAppendTime`: it carries the time "
        "at which the leader appended its batch, by the leader's clock, and the limits of `message.timestamp.*.max.ms` "
        "do not count. Holds for what is appended from now on.",
    ),
    ConfigKey(
        name="min.insync.replicas",
        kind="int",
        default="",
        computed="majority of the replication factor",
        minimum=1,
        maximum=INT_MAX,
        doc="With `acks=all`, a write is refused while fewer replicas than this are in sync (Kafka's default is 1).",
    ),
    ConfigKey(
        name="replica.doze.after.ms",
        kind="int",
        default="",
        computed="the cluster's `replica.doze.after.ms`",
        minimum=-1,
        doc="How long nothing must have been written to or read from a replica before its broker stops the process, "
        "until something comes in; -1 = never.",
    ),
    ConfigKey(
        name="replica.sleep.after.ms",
        kind="int",
        default="",
        computed="the cluster's `replica.sleep.after.ms`",
        minimum=-1,
        doc="How long nothing must have been written to or read from a partition before it sleeps: its replicas have "
        "no processes then, and the next record starts them again; -1 = never but for a stop of the cluster, else at "
        "least 1000. For `__consumer_offsets` it counts for group coordinators too.",
    ),
    _int("retention.bytes", -1, -1, "Size of a partition above which its oldest segments are removed; -1 = no limit."),
    _int("retention.ms", 7 * _DAY_MS, -1, "Age above which segments are removed; -1 = never."),
    _int("segment.bytes", 1 << 30, 1024, "Size at which the log goes on in a new segment.", INT_MAX),
    _int("segment.ms", 7 * _DAY_MS, 1, "Age at which the log goes on in a new segment, full or not."),
    *TIME_KEYS,
    *QUEUE_KEYS,
    ConfigKey(
        name="unclean.leader.election.enable",
        kind="bool",
        default="false",
        doc="Whether a replica outside the ISR may lead when no member is left. Acknowledged records may be lost.",
    ),
)
"""Settings that each topic may have."""

CLUSTER_KEYS: Final = _keys(
    ConfigKey(
        name=ADVERTISED,
        kind="listeners",
        default=DEFAULT,
        doc="The address that clients and other brokers are given for a broker, where it differs from the one at which "
        "it listens: a name, a NAT, a tunnel. Without a host or a port that of `listeners`. Replicas and coordinators "
        "have the host, and ports of their own. `RAYLOG_ADVERTISED_LISTENERS` where Ray is started wins on its node.",
        change=Change.START_ONLY,
        instead=_LISTEN_INSTEAD,
    ),
    ConfigKey(
        name="auto.create.topics.enable",
        kind="bool",
        default="false",
        doc="Whether a topic is created when a producer or consumer uses a name that does not exist, with "
        "`num.partitions` and `default.replication.factor` (Kafka's default is true; here a misspelt name is an error "
        "that names the nearest topic).",
    ),
    ConfigKey(
        name="auto.leader.rebalance.enable",
        kind="bool",
        default="true",
        doc="Whether leadership goes back to preferred replicas by itself, where too much of it has wandered off.",
    ),
    _int(
        "auto.heal.after.ms",
        1_800_000,
        -1,
        "How long a broker may be offline, stopped on purpose or not, before its replicas are rebuilt on other "
        "brokers; -1 = never. The time restarts with the controller.",
    ),
    _int(
        "broker.heartbeat.interval.ms",
        500,
        10,
        "How often brokers and coordinators greet the controller, and replicas without a broker that vouches for them.",
        INT_MAX,
        change=Change.NEXT_START,
    ),
    _int(
        "broker.session.timeout.ms",
        2_500,
        100,
        "Silence after which the controller counts a process as dead (Kafka's default is 9000; a broken connection "
        "counts at once).",
        INT_MAX,
        change=Change.NEXT_START,
    ),
    _int("default.replication.factor", 1, 1, "Replication factor of topics that are created without one.", 32_767),
    _int(
        "follower.replication.throttled.rate",
        LONG_MAX,
        1,
        "Bytes per second that a broker fetches for the replicas that a reassignment brings to it, all together. "
        "Replicas in sync are never slowed down. `raylog topic reassign --throttle` alters it too.",
    ),
    _int(
        "group.initial.rebalance.delay.ms",
        300,
        0,
        "How long the first rebalance of an empty group waits for more members (Kafka's default is 3000; members "
        "inside one Ray cluster start together, and an interactive user should not wait for 3 s).",
        INT_MAX,
    ),
    _int(
        "group.max.session.timeout.ms",
        1_800_000,
        1,
        "Longest session timeout that a group member may request.",
        INT_MAX,
    ),
    _int(
        "group.max.groups",
        100_000,
        1,
        "Most groups of one coordinator; a new one is refused above that (LimitReached). A group without members is "
        "forgotten with its last offset (`offsets.retention.minutes`).",
        INT_MAX,
    ),
    _int("group.max.size", 10_000, 1, "Most members of one group (Kafka's default has no limit).", INT_MAX),
    _int(
        "group.min.session.timeout.ms", 6_000, 1, "Shortest session timeout that a group member may request.", INT_MAX
    ),
    _int(
        "leader.imbalance.check.interval.seconds",
        300,
        1,
        "How often the controller looks whether leadership should go back to preferred replicas.",
        INT_MAX,
    ),
    _int(
        "leader.imbalance.per.broker.percentage",
        10,
        0,
        "Share of the partitions whose preferred leader a broker is that others may lead before leadership goes back.",
        100,
    ),
    ConfigKey(
        name=LISTENERS,
        kind="listeners",
        default=DEFAULT,
        doc="Where brokers listen. `RAYLOG` is the native protocol. Without a host on the node's own address (embedded "
        "brokers: 127.0.0.1); port 0 is the port from before, which is in the broker's directory (a new broker takes "
        "one from 18100 to 18999 that is free). Replicas, coordinators and the controller listen on the host, at ports "
        "of their own. `RAYLOG_LISTENERS` where Ray is started wins on its node.",
        change=Change.START_ONLY,
        instead=_LISTEN_INSTEAD,
    ),
    _int("log.message.timestamp.after.max.ms", 3_600_000, 0, "`message.timestamp.after.max.ms` of topics without it."),
    _int("log.message.timestamp.before.max.ms", LONG_MAX, 0, "`message.timestamp.before.max.ms` of topics without it."),
    _int(
        "log.cleaner.backoff.ms",
        15_000,
        1,
        "How often replicas of compacted topics look whether there is enough to clean.",
    ),
    _int(
        "log.cleaner.io.max.bytes.per.second",
        LONG_MAX,
        1,
        "Bytes per second that the cleaner of a broker reads and writes at most.",
    ),
    _int("log.retention.check.interval.ms", 300_000, 1, "How often replicas look for segments that retention removes."),
    _int(
        "log.scrub.bytes.per.second",
        1_048_576,
        0,
        "Bytes per second of the logs of a broker that its replicas read again, in turns, to find damage before a "
        "reader does; 0 = none (Kafka has no such key).",
        INT_MAX,
    ),
    _int(
        "log.scrub.interval.ms",
        1_814_400_000,
        1,
        "How long after a log was scrubbed it is scrubbed again, if the rate allows (Kafka has no such key).",
    ),
    _int(
        "metadata.log.max.record.bytes.between.snapshots",
        1_048_576,
        1,
        "Bytes of metadata records after which the controller takes a snapshot that stands for them, and the voters "
        "drop them; as many as the last snapshot has, if that is more (Kafka's default is 20971520; a controller that "
        "starts reads all of it, so here it is less).",
    ),
    _int(
        "metadata.voters.max",
        3,
        1,
        "How many brokers keep a copy of the metadata log, at most: 1, 3 or 5. There are 1 with 1 or 2 brokers, 3 with "
        "3 or 4, 5 with 5 or more; brokers that join become voters, and one that is away for longer than "
        "auto.heal.after.ms is replaced. A majority of them has to be there for changes.",
        5,
    ),
    ConfigKey(
        name="metrics.listen",
        kind="choice",
        default="loopback",
        choices=("loopback", "node", "all"),
        doc="Where the page of a node's metrics is reachable: `loopback` (127.0.0.1), `node` (the address by which "
        "other nodes reach this one) or `all` addresses. The page needs no secret.",
    ),
    ConfigKey(
        name="metrics.per.partition",
        kind="bool",
        default="true",
        doc="Whether the metrics have figures of each replica; with false, of topics and brokers only. A replica has "
        "about ten.",
    ),
    _int(
        "metrics.port",
        9404,
        0,
        "Port of `/metrics`, `/healthz` and `/readyz`, one a node; the first of a node's brokers has it. 0 = none.",
        65_535,
    ),
    _int("num.partitions", 1, 1, "Partitions of topics that are created without a number.", 10_000),
    _int("offsets.retention.check.interval.ms", 600_000, 1, "How often expired offsets are looked for."),
    _int("offsets.retention.minutes", 10_080, 1, "How long offsets of a group without members are kept.", INT_MAX),
    _int(
        "offsets.topic.num.partitions",
        1,
        1,
        "Partitions of `__consumer_offsets`, hence group coordinators at most, each a process while it is used. "
        "A new cluster of nodes has 50, as in Kafka. Counts when the topic is created, on first use.",
        10_000,
        change=Change.UNTIL_CREATED,
        fixed_by=(OFFSETS,),
        instead=_FIXED_PARTITIONS,
    ),
    _int(
        "offsets.topic.replication.factor",
        3,
        1,
        "Replication factor of `__consumer_offsets`, and of the other internal topics but `__transaction_state`; with "
        "fewer brokers online at first use, as many as there are.",
        32_767,
        change=Change.UNTIL_CREATED,
        fixed_by=(OFFSETS, *ON_FIRST_USE),
        instead=_FIXED_REPLICAS,
    ),
    _int(
        "producer.id.expiration.ms",
        86_400_000,
        1,
        "How long a partition remembers an idempotent producer that sends nothing to it and has no open transaction "
        "there: so long it knows what is repeated, and refuses older epochs.",
    ),
    _int("replica.lag.time.max.ms", 30_000, 100, "A follower that has not been caught up for so long leaves the ISR."),
    _int(
        "replica.awake.max",
        -1,
        -1,
        "How many replicas each broker has awake at most, each a process. Requests that would wake more are refused "
        "until others have fallen asleep. -1 = by the memory of its machine, and by its cores where replicas do not "
        "doze. Its process cannot have more than its limit of open files allows.",
        INT_MAX,
    ),
    _int(
        "replica.doze.after.ms",
        1_000,
        -1,
        "`replica.doze.after.ms` of topics without it. Needs Linux, and a broker that may signal its replicas: "
        "elsewhere none dozes.",
    ),
    _int(
        "replica.sleep.after.ms",
        120_000,
        -1,
        "`replica.sleep.after.ms` of topics without it. New partitions sleep until they are used, unless it is -1.",
    ),
    _int(
        "replica.spares",
        0,
        0,
        "Processes that each broker keeps ready to become replicas, about 50 MB each: a topic needs no new processes "
        "as long as they last. Used ones are replaced one by one while no replica starts; 0 = none.",
        1_000,
    ),
    _int(
        "replica.sync.time.max.ms",
        10_000,
        100,
        "A leader whose disk has not finished a sync for so long lets another replica lead, if one is in sync "
        "(Kafka has no such key).",
    ),
    _int(
        "scheduled.topic.num.partitions",
        1,
        1,
        "Partitions of `__scheduled`, hence schedulers of delayed records and half messages. All of one target topic "
        "are in one of them. Counts when the topic is created, on first use.",
        10_000,
        change=Change.UNTIL_CREATED,
        fixed_by=("__scheduled",),
        instead=_FIXED_PARTITIONS,
    ),
    _int(
        "share.coordinator.state.topic.num.partitions",
        1,
        1,
        "Partitions of `__share_state`, where queues store their states. All of one group are in one of them. Counts "
        "when the topic is created, on first use.",
        10_000,
        change=Change.UNTIL_CREATED,
        fixed_by=("__share_state",),
        instead=_FIXED_PARTITIONS,
    ),
    _int(
        "transaction.max.timeout.ms",
        900_000,
        1,
        "The longest `transaction.timeout.ms` that a producer may have: an open transaction holds back all readers of "
        "committed records.",
        INT_MAX,
    ),
    _int(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        1,
        "How often unused transactional ids are looked for.",
        INT_MAX,
    ),
    _int(
        "transaction.state.log.num.partitions",
        1,
        1,
        "Partitions of `__transaction_state`, hence transaction coordinators at most, each a process while it is used. "
        "A new cluster of nodes has 50, as in Kafka. Counts when the topic is created, on first use.",
        10_000,
        change=Change.UNTIL_CREATED,
        fixed_by=(TRANSACTIONS,),
        instead=_FIXED_PARTITIONS,
    ),
    _int(
        "transaction.state.log.replication.factor",
        3,
        1,
        "Replication factor of `__transaction_state`; with fewer brokers online at first use, as many as there are.",
        32_767,
        change=Change.UNTIL_CREATED,
        fixed_by=(TRANSACTIONS,),
        instead=_FIXED_REPLICAS,
    ),
    ConfigKey(
        name="transaction.two.phase.commit.enable",
        kind="bool",
        default="true",
        doc="Whether a producer may have transactions without a timeout, which another system decides on (KIP-939). "
        "Kafka's default is false.",
    ),
    _int(
        "transactional.id.expiration.ms",
        604_800_000,
        1,
        "How long a transactional id without an open transaction is kept after its last use.",
        INT_MAX,
    ),
    _int(
        "transactional.id.max",
        100_000,
        1,
        "Most transactional ids of one coordinator. Where it is full, ids without a transaction that were not used for "
        "an hour give way to new ones; without such a one a new id is refused (LimitReached).",
        INT_MAX,
    ),
    _int(
        "transactional.id.prefix.max",
        10_000,
        1,
        "Most transactional ids that begin with the prefix of a token, at one coordinator; its holders make no more "
        "(LimitReached).",
        INT_MAX,
    ),
    _int(
        "transactional.id.prefix.partitions.max",
        100_000,
        1,
        "Most partitions and groups in the open transactions of the ids with a token's prefix, at one coordinator; its "
        "holders add no more (LimitReached).",
        INT_MAX,
    ),
)
"""Settings of the whole cluster, given to ``raylog.start(config=...)`` and kept in the metadata log."""
