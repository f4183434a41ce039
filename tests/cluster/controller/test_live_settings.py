"""Every setting of topics, changed while the topic is in use: the replicas go by the new value, without a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.clock import wall_ms
from raylog.actors.naming import replica_name
from raylog.actors.replica.dozing import Doze
from raylog.actors.replica.opening import BOOT_NOTE
from raylog.actors.replica.server import ReplicaServer
from raylog.base.errors import InvalidRecord, InvalidTimestamp, NotEnoughReplicas, RaylogError, RecordTooLarge
from raylog.core.configuration.config_keys import TOPIC_KEYS
from raylog.core.configuration.queue_keys import QUEUE_KEYS
from raylog.core.configuration.time_keys import TIME_KEYS
from raylog.storage.batch.compression import GZIP, NONE
from raylog.storage.batch.header import BatchHeader, iter_headers
from raylog.storage.batch.records import encode_batch
from raylog.storage.directory import partition_folder
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, refused, reported
from tests.waiting import eventually

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
SMALL: Mapping[str, object] = {"segment.bytes": 1024, "file.delete.delay.ms": 0}
COMPACTED = {**SMALL, "cleanup.policy": "compact"}
OFTEN = {"log.cleaner.backoff.ms": "50", "replica.doze.after.ms": "-1"}
VALUE = b"x" * 100


class Resting:
    """In place of a doze: notes that the replica would rest now."""

    def __init__(self) -> None:
        self.offers = 0

    async def rest(self, doze: Doze) -> int:
        self.offers += 1
        return 0

    def close(self) -> None:
        """It holds nothing."""


class Live:
    """A cluster with one topic, `t`."""

    def __init__(self, cluster: LocalCluster, talk: Talk) -> None:
        self.cluster = cluster
        self.talk = talk
        self.rest = Resting()

    async def create(self, config: Mapping[str, object] | None = None) -> None:
        await self.talk.create("t", replicas=self.cluster.brokers, config=config)

    async def alter(self, key: str, value: object) -> None:
        """Change a key and wait until every replica has it, in the process that it had before."""
        await self.talk.broker("alter_topic_config", ["t", {key: value}, []])
        rows = (await self.talk.broker("describe_configs", ["t"])).args
        found, origin = next((row[1], row[2]) for row in rows if row[0] == key)
        assert (found, origin) == (TOPIC_KEYS[key].read(value), "topic")
        replicas = self.replicas()
        await eventually(lambda: all(replica.spec.topic_config.get(key) == found for replica in replicas))
        assert self.replicas() == replicas

    def replicas(self) -> list[ReplicaServer]:
        return [replica for replica in self.cluster.replicas.values() if replica.spec.topic == "t"]

    @property
    def replica(self) -> ReplicaServer:
        return self.cluster.replica("t", 0, 1)

    @property
    def folder(self) -> Path:
        return partition_folder(self.replica.spec.data_directory, "t", 0)

    def number(self, name: str) -> int:
        """A number of the status of the first broker's replica."""
        found = self.replica.status()[name]
        assert isinstance(found, int)
        return found

    def files(self, suffix: str) -> list[Path]:
        return sorted(self.folder.glob(f"*{suffix}"))

    async def put(self, times: int = 1, key: bytes | None = b"k", value: bytes | None = VALUE, age_ms: int = 0) -> int:
        """Write batches of one record; returns the offset of the last one."""
        head, endpoint = await self.talk.leader("t")
        offset = -1
        for _ in range(times):
            batch = encode_batch(None if key is None else [key], [value], [wall_ms() - age_ms])
            offset = (await self.talk.call(endpoint, "produce", [*head, -1, 5000], batch)).args[0]
        return offset

    async def headers(self) -> list[BatchHeader]:
        head, endpoint = await self.talk.leader("t")
        start = self.number("log_start_offset")
        reply = await self.talk.call(endpoint, "fetch", [*head, start, 1 << 20, 1, 0, 0])
        return [header for _, header in iter_headers(reply.payload)]

    async def until_less(self, size: int) -> None:
        """Wait until the partition has been cleaned to less than so many bytes."""
        await eventually(lambda: self.number("size_bytes") < size, 20, f"the log is cleaned to {size} bytes")


async def cleanup_policy(live: Live) -> None:
    await live.create(SMALL)
    await live.put(60)
    await live.put(key=None)
    before = live.number("size_bytes")
    await live.alter("cleanup.policy", "compact")
    await live.until_less(before // 2)
    await refused(live.put(key=None), InvalidRecord)
    await live.alter("retention.ms", 0)
    await live.put(20)
    assert live.number("log_start_offset") == 0, "a compacted topic keeps its start"
    await live.alter("cleanup.policy", "delete")
    await eventually(lambda: live.number("log_start_offset") > 0, what="retention counts again")
    await live.put(key=None)


async def compression_type(live: Live) -> None:
    await live.create()
    await live.put()
    await live.alter("compression.type", "gzip")
    await live.put()
    await live.alter("compression.type", "none")
    await live.put()
    assert [header.compression for header in await live.headers()] == [NONE, GZIP, NONE]


async def delete_retention_ms(live: Live) -> None:
    await live.create({**COMPACTED, "min.compaction.lag.ms": DAY_MS})
    tombstone = await live.put(key=b"removed", value=None)
    await live.put(30)
    await live.alter("delete.retention.ms", 0)
    await live.alter("min.compaction.lag.ms", 0)
    for _ in range(40):
        await live.put(20)
        first = (await live.headers())[0]
        if first.record_count == 0 and first.last_offset >= tombstone:
            return
    raise AssertionError("the tombstone stayed")


async def file_delete_delay_ms(live: Live) -> None:
    await live.create({"segment.bytes": 1024, "file.delete.delay.ms": HOUR_MS, "retention.bytes": 2048})
    await live.put(30)
    await live.alter("retention.bytes", 1024)
    await eventually(lambda: bool(live.files(".log.deleted")), what="removed files wait for readers")
    waiting = live.files(".log.deleted")
    await live.alter("file.delete.delay.ms", 0)
    start = live.number("log_start_offset")
    await live.put(30)
    await live.alter("retention.bytes", 1025)
    await eventually(lambda: live.number("log_start_offset") > start)
    await eventually(lambda: live.files(".log.deleted") == waiting, what="those removed since wait no more")


async def flush_messages(live: Live) -> None:
    await live.create()
    await live.put()
    assert live.number("synced_end_offset") == 1
    assert (live.folder / BOOT_NOTE).read_text().endswith("synced\n")
    await live.alter("flush.messages", 3)
    note = (live.folder / BOOT_NOTE).read_text()
    await live.put(2)
    assert live.number("synced_end_offset") == 1, "acknowledged from the page cache"
    assert note.endswith("relaxed\n"), "the next life must know that records may be missing"
    await live.put()
    await eventually(lambda: live.number("synced_end_offset") == 4)
    await live.put()
    await live.alter("flush.messages", 1)
    await live.put()
    assert live.number("synced_end_offset") == 6


async def flush_ms(live: Live) -> None:
    await live.create({"flush.messages": 1_000_000})
    await live.put()
    await live.alter("flush.ms", 20)
    await live.put()
    await eventually(lambda: live.number("synced_end_offset") == 2)


async def index_interval_bytes(live: Live) -> None:
    await live.create({"segment.bytes": 2048, "index.interval.bytes": 1_000_000})
    await live.put(40)
    coarse = [path.stat().st_size for path in live.files(".index")]
    await live.alter("index.interval.bytes", 1)
    await live.put(40)
    fine = [path.stat().st_size for path in live.files(".index")[len(coarse) + 1 :]]
    assert max(coarse) < min(fine), (coarse, fine)


async def max_compaction_lag_ms(live: Live) -> None:
    await live.create({**COMPACTED, "min.cleanable.dirty.ratio": 0.01})
    await live.put(60)
    await live.until_less(4_000)
    await live.alter("min.cleanable.dirty.ratio", 1.0)
    end = await live.put(3)
    assert live.files(".log")[-1].stem != f"{end + 1:020d}"
    await live.alter("max.compaction.lag.ms", 1)
    await eventually(lambda: live.files(".log")[-1].stem == f"{end + 1:020d}", 20, "the active segment is sealed")
    await live.until_less(2_000)


async def min_cleanable_dirty_ratio(live: Live) -> None:
    await live.create({**COMPACTED, "min.cleanable.dirty.ratio": 0.01})
    await live.put(60)
    await live.until_less(4_000)
    await live.alter("min.cleanable.dirty.ratio", 1.0)
    await live.put(60)
    before = live.number("size_bytes")
    assert before > 8_000
    await live.alter("min.cleanable.dirty.ratio", 0.01)
    await live.until_less(before // 2)


async def min_compaction_lag_ms(live: Live) -> None:
    await live.create({**COMPACTED, "min.compaction.lag.ms": DAY_MS})
    await live.put(60)
    before = live.number("size_bytes")
    await live.alter("min.compaction.lag.ms", 0)
    await live.until_less(before // 2)


async def max_message_bytes(live: Live) -> None:
    await live.create()
    await live.put(value=bytes(2_000))
    await live.alter("max.message.bytes", 1_000)
    await refused(live.put(value=bytes(2_000)), RecordTooLarge)
    await live.alter("max.message.bytes", 0)
    await refused(live.put(), RecordTooLarge)


async def message_timestamp_after_max_ms(live: Live) -> None:
    await live.create()
    await live.put(age_ms=-HOUR_MS // 2)
    await live.alter("message.timestamp.after.max.ms", 60_000)
    await refused(live.put(age_ms=-HOUR_MS // 2), InvalidTimestamp)


async def message_timestamp_before_max_ms(live: Live) -> None:
    await live.create()
    await live.put(age_ms=HOUR_MS)
    await live.alter("message.timestamp.before.max.ms", 60_000)
    await refused(live.put(age_ms=HOUR_MS), InvalidTimestamp)


async def message_timestamp_type(live: Live) -> None:
    await live.create({"message.timestamp.before.max.ms": 60_000})
    began = wall_ms()
    await refused(live.put(age_ms=DAY_MS), InvalidTimestamp)
    await live.alter("message.timestamp.type", "LogAppendTime")
    await live.put(age_ms=DAY_MS)
    offset, moment = await live.talk.list_offsets("t", began - 1)
    assert offset == 0
    assert began <= moment <= wall_ms()
    await live.alter("message.timestamp.type", "CreateTime")
    await refused(live.put(age_ms=DAY_MS), InvalidTimestamp)


async def min_insync_replicas(live: Live) -> None:
    await live.create()
    leader, ensure = (await live.talk.partition("t")).leader, live.cluster.ensure

    async def but_the_follower(spec: ReplicaSpec) -> None:
        if spec.broker == leader:
            await ensure(spec)

    live.cluster.ensure = but_the_follower  # type: ignore[method-assign]  # its broker would have it back too soon
    await live.cluster.stop_replica("t", 0, 3 - leader)
    await live.talk.until("t", lambda row: row.isr == [leader])
    await refused(live.put(), NotEnoughReplicas)
    await live.alter("min.insync.replicas", 1)
    await live.put()


async def replica_doze_after_ms(live: Live) -> None:
    await live.create()
    await live.put()
    assert live.rest.offers == 0
    await live.alter("replica.doze.after.ms", 0)
    await eventually(lambda: live.rest.offers > 0, 20, "the replica offers to rest")


async def replica_sleep_after_ms(live: Live) -> None:
    await live.create()
    await live.put()
    replica = live.replica
    await live.alter("replica.sleep.after.ms", 1_000)
    await eventually(lambda: not live.replicas(), 30, "the partition falls asleep")
    assert replica.is_stopped
    await live.talk.broker("alter_topic_config", ["t", {"replica.sleep.after.ms": -1}, []])


async def retention_bytes(live: Live) -> None:
    await live.create(SMALL)
    await live.put(60)
    await live.alter("retention.bytes", 2_000)
    await eventually(lambda: live.number("size_bytes") < 4_000, what="old segments go")


async def retention_ms(live: Live) -> None:
    await live.create(SMALL)
    await live.put(60, age_ms=HOUR_MS)
    await live.alter("retention.ms", HOUR_MS // 2)
    await eventually(lambda: live.number("log_start_offset") == 60, what="old segments go")


async def segment_bytes(live: Live) -> None:
    await live.create()
    await live.put(20)
    assert len(live.files(".log")) == 1
    await live.alter("segment.bytes", 1024)
    await live.put(20)
    assert len(live.files(".log")) > 2


async def segment_ms(live: Live) -> None:
    await live.create()
    await live.put(3)
    assert len(live.files(".log")) == 1
    await live.alter("segment.ms", 1)
    began = wall_ms()
    await eventually(lambda: wall_ms() > began + 1)
    await live.put()
    assert len(live.files(".log")) == 2


async def unclean_leader_election_enable(live: Live) -> None:
    await live.talk.create("t", replicas=2, config={"min.insync.replicas": 1})
    row = await live.talk.partition("t")
    leader, other = row.leader, next(broker for broker in row.replicas if broker != row.leader)
    away = await live.cluster.stop_replica("t", 0, other)
    await live.talk.until("t", lambda row: row.isr == [leader])
    await live.put()
    await live.cluster.stop_broker(leader)  # nothing starts its replica again
    await live.cluster.stop_replica("t", 0, leader)
    await live.cluster.ensure(away)
    await live.talk.until("t", lambda row: row.leader == -1 and any(port for broker, _, port in row.places))
    await live.talk.broker("alter_topic_config", ["t", {"unclean.leader.election.enable": True}, []])
    row = await live.talk.until("t", lambda row: row.leader == other)
    assert row.unclean_leader_epoch == row.leader_epoch


OF_ROLES = {key.name for key in (*TIME_KEYS, *QUEUE_KEYS)}
"""Read by clients and by the roles of leaders: `test_settings_change_at_run_time` in
`tests/cluster/forwarding`, `tests/cluster/scheduling` and `tests/cluster/queues/test_live_settings.py` change them."""
# The hash of coordinators' topics never changes: `tests/unit/core/controller/test_coordinator_topics.py`.
STORIES: Mapping[str, Callable[[Live], Awaitable[None]]] = {
    key: globals()[key.replace(".", "_")] for key in sorted(set(TOPIC_KEYS) - OF_ROLES)
}
BROKERS = {"min.insync.replicas": 2, "unclean.leader.election.enable": 3}
"""Of the stories that need more than one."""


class RestingCluster(LocalCluster):
    """A cluster whose replicas may rest: the rest that they are given notes it."""

    rest: Resting

    async def ensure(self, spec: ReplicaSpec) -> None:
        name = replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)
        if name not in self.replicas:
            self.replicas[name] = ReplicaServer(
                spec, find_controller=self.find_controller, on_fatal=self.fatal.append, rest=self.rest
            )
            await self.replicas[name].start()


@pytest.mark.parametrize("key", STORIES)
def test_a_live_topic_goes_by_the_new_value_of(key: str, tmp_path: Path) -> None:
    kind: type[Any] = RestingCluster if key == "replica.doze.after.ms" else LocalCluster
    cluster: LocalCluster = kind(tmp_path, BROKERS.get(key, 1), OFTEN)

    async def story(cluster: LocalCluster, talk: Talk) -> None:
        live = Live(cluster, talk)
        if isinstance(cluster, RestingCluster):
            cluster.rest = live.rest
        await STORIES[key](live)

    asyncio.run(reported(story, cluster))


def test_a_process_that_is_started_again_has_the_settings_of_now(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        live = Live(cluster, talk)
        await live.create({"max.message.bytes": 5_000})
        first = live.replica.spec
        await live.alter("max.message.bytes", 1_000)
        await cluster.crash_replica("t", 0, 1)
        seen: list[RaylogError | int] = []
        reconfigure = cluster.reconfigure

        async def too_late(spec: ReplicaSpec) -> None:
            await eventually(lambda: bool(seen))
            await reconfigure(spec)

        cluster.reconfigure = too_late  # type: ignore[method-assign]  # the broker is slower than the first client
        await cluster.ensure(first)  # as Ray does: with the arguments of the first process
        await talk.whole("t")
        seen.append(await refused(live.put(value=bytes(2_000)), RecordTooLarge))

    asyncio.run(reported(story, LocalCluster(tmp_path, 1, OFTEN)))
