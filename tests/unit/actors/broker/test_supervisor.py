"""The supervisor brings replicas in line with the metadata, despite failures on the way."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from raylog.actors.actor_specs import BrokerSpec, ReplicaSpec
from raylog.actors.broker.supervisor import ReplicaSupervisor
from raylog.actors.naming import replica_name
from raylog.base.ids import BrokerId, Incarnation, PartitionEpoch, TopicPartition
from raylog.core.metadata.image import MetadataImage, partition_changed
from raylog.core.metadata.records import (
    BrokerRegistered,
    BrokerResumed,
    BrokerStopped,
    MetadataRecord,
    PartitionChanged,
    PartitionsBornAsleep,
    ReplicaPlaced,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from raylog.core.metadata.touched import Touched
from raylog.core.partition import NEVER_WRITTEN, PartitionState
from tests.waiting import eventually

TOPIC_ID = "a" * 32


class Workshop:
    """A replica factory that keeps records instead of actors, and fails a given number of times."""

    def __init__(self) -> None:
        self.running: dict[str, ReplicaSpec] = {}
        self.configurations: list[dict[str, str]] = []
        self.failures = 0
        self.calls = 0
        self.stuck: set[int] = set()
        self.newest: MetadataImage | None = None
        self.left_over: set[str] = set()
        """Actors of an earlier life of the broker."""
        self.ended: list[str] = []
        self.queries = 0
        """Of the controller."""

    def _maybe_fail(self) -> None:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise RuntimeError("Ray did not answer")

    async def ensure(self, spec: ReplicaSpec) -> None:
        if spec.partition in self.stuck:
            await asyncio.Event().wait()
        self._maybe_fail()
        self.running[spec.topic + str(spec.partition)] = spec

    async def reconfigure(self, spec: ReplicaSpec) -> None:
        self._maybe_fail()
        self.configurations.append(dict(spec.topic_config))

    async def living(self, broker: int) -> set[str]:
        return {name for name in self.left_over if f":broker-{broker}:" in name}

    async def end(self, name: str) -> None:
        self._maybe_fail()
        self.ended.append(name)
        self.left_over.discard(name)
        for key, spec in list(self.running.items()):
            if replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id) == name:
                del self.running[key]


Story = Callable[[Workshop, ReplicaSupervisor, MetadataImage], Coroutine[Any, Any, None]]


def play(
    root: Path, story: Story, partitions: int = 1, assignment: tuple[tuple[BrokerId, ...], ...] | None = None
) -> None:
    """Run a story with a supervisor of broker 1, and a topic of which it holds every partition."""

    async def whole() -> None:
        factory, image = Workshop(), MetadataImage()
        spec = BrokerSpec(broker=1, folder=root, secret=b"s" * 16, cluster_id="c", node_id="n")

        async def newest() -> MetadataImage:
            factory.queries += 1
            return factory.newest or image

        supervisor = ReplicaSupervisor(spec, 1, factory, newest)
        placed_on = assignment or ((BrokerId(1),),) * partitions
        image.apply(TopicCreated(topic_id=TOPIC_ID, topic="t", config={}, partitions=placed_on))
        supervisor.start()
        try:
            async with asyncio.timeout(20):
                await story(factory, supervisor, image)
        finally:
            async with asyncio.timeout(5):
                await supervisor.stop()

    asyncio.run(whole())


def placed(incarnation: int, port: int = 1) -> ReplicaPlaced:
    return ReplicaPlaced(
        topic="t", partition=0, broker=BrokerId(1), incarnation=Incarnation(incarnation), host="h", port=port
    )


def named(partition: int) -> str:
    return replica_name("t", partition, 1, TOPIC_ID)


def changed(image: MetadataImage, *records: MetadataRecord) -> Touched:
    """Apply records; returns what they were about."""
    touched = Touched()
    for record in records:
        image.apply(record)
    touched.note(records)
    return touched


def sleep_of(image: MetadataImage, partition: int, *, asleep: bool) -> PartitionChanged:
    """The record by which a partition falls asleep or wakes."""
    state = image.partition(TopicPartition("t", partition))
    assert state is not None
    epoch = PartitionEpoch(state.partition_epoch + 1)
    return partition_changed(
        replace(state, leader=BrokerId(1), asleep=NEVER_WRITTEN if asleep else None, partition_epoch=epoch)
    )


def folder_of(root: Path, partition: int = 0) -> Path:
    folder = root / f"t-{partition}"
    folder.mkdir()
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    return folder


def test_what_fails_is_tried_again(tmp_path: Path) -> None:
    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        factory.failures = 1
        supervisor.reconcile(image)
        await eventually(lambda: bool(factory.running))
        assert factory.calls == 2
        factory.failures = 1
        image.apply(TopicDeleted(topic_id=TOPIC_ID, topic="t"))
        supervisor.reconcile(image)
        await eventually(lambda: not factory.running)

    play(tmp_path, story)


def test_a_replica_that_does_not_start_holds_up_no_other(tmp_path: Path) -> None:
    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        factory.stuck = {0}
        supervisor.reconcile(image)
        await eventually(lambda: set(factory.running) == {"t1", "t2"})

    play(tmp_path, story, partitions=3)


def test_leaders_are_started_first_and_then_the_first_followers(tmp_path: Path) -> None:
    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        supervisor.reconcile(image)
        await eventually(lambda: len(factory.running) == 4)
        assert list(factory.running) == ["t1", "t2", "t0", "t3"]

    one, two, three = BrokerId(1), BrokerId(2), BrokerId(3)
    play(tmp_path, story, assignment=((two, three, one), (one, two, three), (three, one, two), (three, two, one)))


def test_a_folder_stays_when_the_replica_was_added_again_meanwhile(tmp_path: Path) -> None:
    """The broker's metadata is late: it sees the removal, and not yet that the replica was added again."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    here_and_elsewhere = ((BrokerId(1), BrokerId(2)),)

    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        supervisor.reconcile(image)
        await eventually(lambda: bool(factory.running))
        factory.newest = image.copy()
        late = MetadataImage()
        late.apply(TopicCreated(topic_id=TOPIC_ID, topic="t", config={}, partitions=((BrokerId(2),),)))
        supervisor.reconcile(late)
        await eventually(lambda: not factory.running)
        supervisor.reconcile(factory.newest)
        await eventually(lambda: bool(factory.running))
        assert folder.exists()
        factory.newest = late
        supervisor.reconcile(late)
        await eventually(lambda: not folder.exists())

    play(tmp_path, story, assignment=here_and_elsewhere)


def test_each_incarnation_receives_the_configuration_and_its_changes_once(tmp_path: Path) -> None:
    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        def look(*records: ReplicaPlaced | TopicConfigured) -> None:
            for record in records:
                image.apply(record)
            supervisor.reconcile(image)

        look(placed(5))
        await eventually(lambda: factory.configurations == [{}])
        look(TopicConfigured(topic_id=TOPIC_ID, topic="t", config={"retention.ms": "5"}))
        await eventually(lambda: factory.configurations == [{}, {"retention.ms": "5"}])
        look(placed(5, port=0), placed(9))
        await eventually(lambda: len(factory.configurations) == 3)
        look()
        calls = factory.calls
        await asyncio.sleep(0)
        assert factory.calls == calls

    play(tmp_path, story)


def test_a_directory_that_cannot_be_read_starts_the_replicas_all_the_same(tmp_path: Path) -> None:
    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        supervisor.reconcile(image)
        await eventually(lambda: bool(factory.running))

    play(tmp_path / "missing", story)


def test_the_replicas_of_a_stopped_broker_end_until_it_is_resumed(tmp_path: Path) -> None:
    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        me = BrokerId(1)
        image.apply(
            BrokerRegistered(broker=me, incarnation=Incarnation(1), node_id="n", host="h", port=1, directory_id="d")
        )
        supervisor.reconcile(image)
        await eventually(lambda: set(factory.running) == {"t0", "t1"})
        image.apply(BrokerStopped(broker=me))
        supervisor.reconcile(image)
        await eventually(lambda: not factory.running)
        calls = factory.calls
        supervisor.reconcile(image)
        await asyncio.sleep(0)
        assert factory.calls == calls, "nothing is made again"
        image.apply(BrokerResumed(broker=me))
        supervisor.reconcile(image)
        await eventually(lambda: set(factory.running) == {"t0", "t1"})

    play(tmp_path, story, partitions=2)


# ---------------------------------------------------------------- partitions that sleep


def test_a_replica_that_falls_asleep_ends_and_keeps_its_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)

    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        supervisor.reconcile(image)
        await eventually(lambda: set(factory.running) == {"t0", "t1"})
        supervisor.reconcile(image, changed(image, sleep_of(image, 0, asleep=True)))
        await eventually(lambda: set(factory.running) == {"t1"})
        supervisor.reconcile(image, changed(image, sleep_of(image, 0, asleep=False)))
        await eventually(lambda: set(factory.running) == {"t0", "t1"})
        assert folder.exists()

    play(tmp_path, story, partitions=2)


def test_a_topic_that_is_deleted_asleep_leaves_no_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)

    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        image.apply(PartitionsBornAsleep(topic="t", first=0, end=1))
        supervisor.reconcile(image)
        await asyncio.sleep(0)
        supervisor.reconcile(image, changed(image, TopicDeleted(topic_id=TOPIC_ID, topic="t")))
        await eventually(lambda: not folder.exists())
        assert not factory.running

    play(tmp_path, story)


def test_a_topic_that_is_deleted_while_it_falls_asleep_leaves_no_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)

    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        supervisor.reconcile(image)
        await eventually(lambda: bool(factory.running))
        asleep = changed(image, sleep_of(image, 0, asleep=True))
        supervisor.reconcile(image, asleep)
        supervisor.reconcile(image, changed(image, TopicDeleted(topic_id=TOPIC_ID, topic="t")))
        await eventually(lambda: not factory.running and not folder.exists())

    play(tmp_path, story)


def test_what_an_earlier_life_of_the_broker_left_running_asleep_is_ended(tmp_path: Path) -> None:
    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        elsewhere = replica_name("t", 0, 2, TOPIC_ID)
        factory.left_over = {named(0), named(1), elsewhere}
        factory.failures = 1
        image.apply(PartitionsBornAsleep(topic="t", first=0, end=1))
        supervisor.reconcile(image)
        await eventually(lambda: factory.left_over == {named(1), elsewhere})
        await eventually(lambda: set(factory.running) == {"t1"})
        assert set(factory.ended) == {named(0)}, "what is awake runs on, and another broker's is left alone"

    play(tmp_path, story, partitions=2)


def test_what_an_earlier_life_requested_ends_where_its_topic_was_deleted(tmp_path: Path) -> None:
    """Its process begins behind the deletion, and no folder of it is there when the broker starts."""

    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        elsewhere = replica_name("t", 0, 2, TOPIC_ID)
        factory.left_over = {named(0), elsewhere}
        factory.failures = 1
        image.apply(TopicDeleted(topic_id=TOPIC_ID, topic="t"))
        image.apply(TopicCreated(topic_id="b" * 32, topic="t", config={}, partitions=((BrokerId(1),),)))
        supervisor.reconcile(image)
        await eventually(lambda: factory.left_over == {elsewhere})
        assert [spec.topic_id for spec in factory.running.values()] == ["b" * 32]
        assert factory.ended == [named(0)], "its namesake runs, and another broker's is left alone"

    play(tmp_path, story)


def test_a_folder_that_such_a_process_has_made_is_removed_with_it(tmp_path: Path) -> None:
    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        end = factory.end
        factory.left_over = {named(0)}

        async def late(name: str) -> None:
            folder_of(tmp_path)  # it opens its log behind the look for folders, and before it ends
            await end(name)

        with mock.patch.object(factory, "end", late):
            supervisor.reconcile(image, changed(image, TopicDeleted(topic_id=TOPIC_ID, topic="t")))
            await eventually(lambda: factory.ended == [named(0)])
        await eventually(lambda: not (tmp_path / "t-0").exists())

    play(tmp_path, story)


def test_what_an_earlier_life_left_ends_where_it_was_moved_away(tmp_path: Path) -> None:
    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        factory.left_over = {named(0), named(1)}
        supervisor.reconcile(image)
        await eventually(lambda: factory.ended == [named(0)] and set(factory.running) == {"t1"})

    play(tmp_path, story, assignment=((BrokerId(2),), (BrokerId(1),)))


def test_what_an_earlier_life_left_of_a_stopped_broker_is_ended(tmp_path: Path) -> None:
    """The broker died amid its own stop."""
    folder = folder_of(tmp_path)

    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        me = BrokerId(1)
        factory.left_over = {named(0)}
        image.apply(
            BrokerRegistered(broker=me, incarnation=Incarnation(1), node_id="n", host="h", port=1, directory_id="d")
        )
        image.apply(BrokerStopped(broker=me))
        supervisor.reconcile(image)
        await eventually(lambda: factory.ended == [named(0)])
        assert folder.exists()
        image.apply(BrokerResumed(broker=me))
        supervisor.reconcile(image)
        await eventually(lambda: set(factory.running) == {"t0"})

    play(tmp_path, story)


def test_what_an_earlier_life_left_runs_on_where_newer_metadata_have_it(tmp_path: Path) -> None:
    """The broker's metadata are late: they do not have the topic yet."""

    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        factory.left_over, factory.newest = {named(0)}, image
        supervisor.reconcile(MetadataImage())
        await eventually(lambda: factory.queries > 0)
        supervisor.reconcile(image)
        await eventually(lambda: set(factory.running) == {"t0"})
        assert not factory.ended

    play(tmp_path, story)


def test_what_ray_started_again_ends_when_it_falls_asleep_at_once(tmp_path: Path) -> None:
    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        async def none_yet(_: int) -> set[str]:
            factory.left_over = {named(0)}  # it is awake when the leftovers are looked for, and asleep behind that
            supervisor.reconcile(image, changed(image, sleep_of(image, 0, asleep=True)))
            return set()

        with mock.patch.object(factory, "living", none_yet):
            supervisor.reconcile(image)
            await eventually(lambda: factory.ended == [named(0)])
        supervisor.reconcile(image, changed(image, sleep_of(image, 0, asleep=False)))
        await eventually(lambda: set(factory.running) == {"t0"})
        assert factory.ended == [named(0)], "once"

    play(tmp_path, story)


def test_a_replica_whose_start_failed_halfway_ends_when_it_falls_asleep(tmp_path: Path) -> None:
    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        async def halfway(spec: ReplicaSpec) -> None:
            factory.left_over = {named(spec.partition)}
            raise RuntimeError("Ray did not answer")

        with mock.patch.object(factory, "ensure", halfway):
            supervisor.reconcile(image)
            await eventually(lambda: factory.left_over == {named(0)})
            supervisor.reconcile(image, changed(image, sleep_of(image, 0, asleep=True)))
            await eventually(lambda: not factory.left_over)

    play(tmp_path, story)


def test_nothing_is_looked_at_that_was_not_touched(tmp_path: Path) -> None:
    """Many partitions are asleep: what changes in one costs what one costs."""
    looked: list[str] = []

    async def story(factory: Workshop, supervisor: ReplicaSupervisor, image: MetadataImage) -> None:
        image.apply(PartitionsBornAsleep(topic="t", first=1, end=200))
        supervisor.reconcile(image)
        await eventually(lambda: set(factory.running) == {"t0"})
        supervisor.reconcile(image, changed(image, placed(5)))
        await eventually(lambda: len(factory.configurations) == 1)
        calls = factory.calls
        with mock.patch.object(MetadataImage, "partition", autospec=True, side_effect=counted(looked)):
            supervisor.reconcile(image, changed(image, sleep_of(image, 7, asleep=False)))
            await eventually(lambda: "t7" in factory.running)
            supervisor.reconcile(image, changed(image, sleep_of(image, 7, asleep=True)))
            await eventually(lambda: "t7" not in factory.running)
        assert factory.calls == calls + 2, "one was started and ended"
        assert set(looked) == {"t-7"}

    play(tmp_path, story, partitions=200)


def counted(looked: list[str]) -> Callable[..., PartitionState | None]:
    """``MetadataImage.partition``, which notes what it is called for."""
    original = MetadataImage.partition

    def partition(image: MetadataImage, at: TopicPartition, topic_id: str | None = None) -> PartitionState | None:
        looked.append(str(at))
        return original(image, at, topic_id)

    return partition
