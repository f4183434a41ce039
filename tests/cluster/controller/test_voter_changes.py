"""The voters of the metadata log change while the cluster runs: growth, replacement, and the loss of the first disk."""

import asyncio
import shutil
import threading
import time
from pathlib import Path

import pytest

from raylog.actors.metadata.voter_files import note_end
from raylog.base.errors import NotController, RaylogError, TopicAlreadyExists
from tests.cluster.controller.test_metadata_quorum import entered, log_file
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually

QUICK = {"broker.session.timeout.ms": "1000", "auto.heal.after.ms": "1500"}
NO_DECISION_S = 2.0
"""The longest that decisions may wait while voters change."""


def voters(cluster: LocalCluster) -> set[int]:
    return {int(number) for number in entered(cluster)}


def settled(cluster: LocalCluster, *expected: int) -> bool:
    """These brokers vote, everything is committed, and their copies are equal."""
    store = cluster.running()._metadata
    if store is None or voters(cluster) != set(expected) or store.runner.committed_offset < store.runner.log_end_offset:
        return False
    return len({log_file(cluster, broker).read_bytes() for broker in expected}) == 1


class Decisions:
    """Creates topics continuously, and notes how long each had to wait."""

    def __init__(self, talk: Talk) -> None:
        self.made: list[str] = []
        self.waits: list[float] = []
        self.failures: list[str] = []
        self._talk = talk
        self._ends = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        began = time.monotonic()
        while not self._ends:
            name = f"t{len(self.made)}"
            try:
                await self._talk.broker("create_topic", [name, 1, 1, [[1]], {}, False, 100])
            except TopicAlreadyExists:
                pass
            except RaylogError as failure:
                self.failures.append(repr(failure))
                continue
            self.made.append(name)
            self.waits.append(time.monotonic() - began)
            began = time.monotonic()
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        self._ends = True
        await self._task


@in_cluster(brokers=1, config=QUICK)
async def test_one_voter_becomes_three_when_brokers_join_and_no_decision_waits(
    cluster: LocalCluster, talk: Talk
) -> None:
    decisions = Decisions(talk)
    await cluster.start_broker(2)
    await cluster.broker_servers[2].wait_registered(10)
    assert voters(cluster) == {1}, "two voters would tolerate no more losses than one"
    await cluster.start_broker(3)
    await eventually(lambda: voters(cluster) == {1, 2, 3}, what="the voters grow")
    seen = len(decisions.made)
    await eventually(lambda: len(decisions.made) > seen + 5)
    await decisions.end()
    assert decisions.failures == []
    assert max(decisions.waits) < NO_DECISION_S
    await eventually(lambda: settled(cluster, 1, 2, 3), what="the copies are equal")
    for broker in (1, 2, 3):
        note = cluster.root / f"broker-{broker}" / "metadata-voters"
        await eventually(lambda note=note: note.exists() and note.read_text() == "1,2,3\n")  # type: ignore[misc]
    await cluster.stop_broker(1)
    await cluster.stop_controller()
    await cluster.start_controller()
    assert set(cluster.running().image.topics) >= set(decisions.made)
    assert cluster.running().status()["metadata_voters"] == {"voters": [1, 2, 3], "max": 3}


@in_cluster(brokers=4, config=QUICK)
async def test_a_replaced_voter_cannot_disturb_when_it_returns(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("before", replicas=1)
    await eventually(lambda: settled(cluster, 1, 2, 3))
    await cluster.stop_broker(3)
    decisions = Decisions(talk)
    await eventually(lambda: voters(cluster) == {1, 2, 4}, what="the fourth broker takes its place")
    seen = len(decisions.made)
    await eventually(lambda: len(decisions.made) > seen + 5)
    await decisions.end()
    assert decisions.failures == []
    assert max(decisions.waits) < NO_DECISION_S
    epoch = cluster.running().image.controller_epoch
    await cluster.start_broker(3)
    await cluster.broker_servers[3].wait_registered(10)
    await talk.create("after", replicas=1)
    assert cluster.running().image.controller_epoch == epoch
    assert voters(cluster) == {1, 2, 4}
    await cluster.stop_controller()
    await cluster.stop_broker(1)
    await cluster.stop_broker(2)
    error = await refused(cluster.new_controller(quorum_timeout_s=1.5).start(), NotController)
    assert "brokers 1, 2 did not answer" in str(error), "a removed voter and one of three are no majority"
    await cluster.start_broker(2)
    await cluster.start_controller()
    assert set(cluster.running().image.topics) >= {"before", "after", *decisions.made}


@in_cluster(brokers=1, config=QUICK)
async def test_the_first_broker_loses_its_disk_and_everything_is_still_there(cluster: LocalCluster, talk: Talk) -> None:
    for broker in (2, 3):
        await cluster.start_broker(broker)
    await talk.create("kept", replicas=3)
    assert await talk.produce("kept", b"a") == 0
    await eventually(lambda: settled(cluster, 1, 2, 3), what="the voters grow")
    topic_id = cluster.running().image.topics["kept"].topic_id
    await cluster.stop()
    shutil.rmtree(cluster.root / "broker-1")
    # The controller starts with its original arguments: with the one voter that founded the cluster.
    await cluster.start_broker(1)
    error = await refused(cluster.new_controller(quorum_timeout_s=1.5).start(), NotController)
    assert "No broker that answered holds the metadata log" in str(error), "no second cluster is created"
    for broker in (2, 3):
        await cluster.start_broker(broker)
    await cluster.start_controller()
    assert cluster.running().image.topics["kept"].topic_id == topic_id
    await eventually(lambda: settled(cluster, 1, 2, 3), timeout_s=20, what="the new copy votes")
    await talk.whole("kept")
    assert await talk.values("kept", 1) == [b"a"]


@in_cluster(config=QUICK)
async def test_a_voter_whose_disk_hangs_does_not_silence_its_broker(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("before", replicas=1)
    release, hangs = threading.Event(), threading.Event()

    def hang(folder: Path, end: int) -> None:
        if folder.parent.name == "broker-1":
            hangs.set()
            assert release.wait(30)
        note_end(folder, end)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raylog.actors.metadata.voter.note_end", hang)
        try:
            await talk.create("during", replicas=1)
            await eventually(hangs.is_set, what="the voter's disk hangs")
            began = time.monotonic()
            for _ in range(20):
                await talk.broker("metadata", [None], 1)
            assert time.monotonic() - began < 5
        finally:
            release.set()
    await talk.create("after", replicas=1)
