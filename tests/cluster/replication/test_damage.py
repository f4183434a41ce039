"""Disks that lose, flip or refuse bytes under a replica of a running cluster."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.replica import watermark_keeper
from raylog.base.errors import KafkaStorageError
from raylog.storage.log import partition_log
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually


def folder_of(spec: ReplicaSpec) -> Path:
    return spec.data_directory / f"{spec.topic}-{spec.partition}"


async def filled(cluster: LocalCluster, talk: Talk, batches: int = 20, **config: object) -> int:
    """Make topic t with some batches; returns a broker that follows."""
    await talk.create("t", config={name.replace("_", "."): value for name, value in config.items()})
    for number in range(batches):
        await talk.produce("t", b"%d" % number)
    leader = (await talk.partition("t")).leader
    return next(broker for broker in (1, 2, 3) if broker != leader)


@in_cluster()
async def test_a_torn_end_is_cut_and_fetched_again(cluster: LocalCluster, talk: Talk) -> None:
    follower = await filled(cluster, talk)
    spec = await cluster.crash_replica("t", 0, follower)
    log = next(folder_of(spec).glob("*.log"))
    os.truncate(log, log.stat().st_size - 30)
    await cluster.ensure(spec)
    await talk.whole("t")
    assert cluster.replica("t", 0, follower).status()["log_end_offset"] == 20
    assert not (spec.data_directory / ".damaged").exists()
    assert await talk.produce("t", b"more") == 20


@in_cluster()
async def test_damage_below_the_recovery_point_is_refilled_from_the_peers(cluster: LocalCluster, talk: Talk) -> None:
    follower = await filled(cluster, talk)
    spec = await cluster.stop_replica("t", 0, follower)
    log = next(folder_of(spec).glob("*.log"))
    (folder_of(spec) / "clean-shutdown").unlink()
    os.truncate(log, log.stat().st_size // 2)
    await cluster.ensure(spec)
    await talk.whole("t")
    aside = list((spec.data_directory / ".damaged").iterdir())
    assert len(aside) == 1, "what is left of the damaged log is kept for the operator"
    assert cluster.replica("t", 0, follower).status()["log_end_offset"] == 20
    assert next(aside[0].glob("*.log")).stat().st_size > 0


def test_a_leader_without_its_committed_end_does_not_lead_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Leader and controller start together, so that its place in the ISR stands: followers would cut what it lacks."""
    monkeypatch.setattr(watermark_keeper, "KEEP_MS", 0)
    monkeypatch.setattr(partition_log, "CHECKPOINT_SECONDS", 1e9)  # none of it lies below the recovery point

    @in_cluster()
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await filled(cluster, talk)
        row = await talk.partition("t")
        leader, epoch = row.leader, row.leader_epoch
        kept = folder_of(cluster.replica("t", 0, leader).spec) / "high-watermark-checkpoint"
        await eventually(lambda: kept.exists() and kept.read_text().startswith("20 "), what="the watermark is kept")
        await cluster.stop_controller()
        spec = await cluster.crash_replica("t", 0, leader)
        log = next(folder_of(spec).glob("*.log"))
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 8
        log.write_bytes(data)
        await cluster.start_controller()
        await cluster.ensure(spec)
        await talk.until("t", lambda row: row.leader_epoch > epoch and row.leader != -1 and row.port > 0)
        await talk.whole("t")
        assert len(await talk.values("t", 20)) == 20
        assert (await talk.partition("t")).leader != leader
        (aside,) = (spec.data_directory / ".damaged").iterdir()
        assert next(aside.glob("*.log")).read_bytes() == data, "nothing of it was cut"
        assert str(aside) in cluster.replica("t", 0, leader)._running().damage.before

    story(tmp_path)


@in_cluster()
async def test_a_damaged_only_member_of_the_isr_does_not_lead_with_an_empty_log(
    cluster: LocalCluster, talk: Talk
) -> None:
    await filled(cluster, talk, min_insync_replicas=1)
    leader = (await talk.partition("t")).leader
    specs = [await cluster.stop_replica("t", 0, broker) for broker in (1, 2, 3) if broker != leader]
    await talk.until("t", lambda row: row.isr == [leader])
    lost = await cluster.stop_replica("t", 0, leader)
    shutil.rmtree(folder_of(lost))
    await talk.until("t", lambda row: row.leader == -1)
    for spec in [lost, *specs]:
        await cluster.ensure(spec)
    await eventually(lambda: all(replica.status()["controller_connected"] for replica in cluster.replicas.values()))
    described = (await talk.broker("describe_cluster", [])).args
    assert described["lost_logs"] == [["t-0", leader]]
    assert (await talk.partition("t")).leader == -1, "what was committed may be on that disk: a person decides"
    await talk.broker("alter_topic_config", ["t", {"unclean.leader.election.enable": "true"}, []])
    await talk.whole("t")
    assert len(await talk.values("t", 20)) == 20


@in_cluster()
async def test_an_eligible_replica_leads_when_the_only_isr_member_lost_its_log(
    cluster: LocalCluster, talk: Talk
) -> None:
    await filled(cluster, talk)
    leader = (await talk.partition("t")).leader
    specs = []
    for broker in (1, 2, 3):
        if broker != leader:
            specs.append(await cluster.stop_replica("t", 0, broker))
            await talk.until("t", lambda row, damaged=broker: damaged not in row.isr)  # type: ignore[misc]
    lost = await cluster.stop_replica("t", 0, leader)
    shutil.rmtree(folder_of(lost))
    await talk.until("t", lambda row: row.leader == -1)
    for spec in [lost, *specs]:
        await cluster.ensure(spec)
    row = await talk.whole("t")
    assert (row.leader, row.unclean_leader_epoch) == (specs[-1].broker, 0), "the last replica to leave has every record"
    assert len(await talk.values("t", 20)) == 20


@in_cluster()
async def test_an_emptied_leader_steps_down_and_its_records_survive(cluster: LocalCluster, talk: Talk) -> None:
    await filled(cluster, talk)
    leader = (await talk.partition("t")).leader
    spec = await cluster.stop_replica("t", 0, leader)
    shutil.rmtree(folder_of(spec))
    await cluster.ensure(spec)
    row = await talk.whole("t")
    assert row.leader != leader
    assert len(await talk.values("t", 20)) == 20


@pytest.fixture
def tiny_disk(tmp_path: Path):  # type: ignore[no-untyped-def]
    """The root of a cluster whose first broker's directory is a file system of 512 KiB."""
    mount = tmp_path / "broker-1"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(mount)], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a tmpfs needs root; tests/unit/storage injects the same failures")
    yield tmp_path
    subprocess.run(["umount", str(mount)], check=True, timeout=30)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount command")
def test_a_full_disk_at_the_leader_is_reported_and_writes_resume_later(tiny_disk: Path) -> None:
    @in_cluster(brokers=1)
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await talk.create("t", replicas=1)
        ballast = tiny_disk / "broker-1" / "ballast"
        ballast.write_bytes(bytes(200_000))
        stored, error = 0, None
        while error is None:
            try:
                await talk.produce("t", os.urandom(20_000))
                stored += 1
            except KafkaStorageError as refusal:
                error = refusal
        assert "space" in str(error).lower(), str(error)
        assert len(await talk.values("t", stored)) == stored > 3
        ballast.unlink()
        assert await talk.produce("t", b"room again") == stored

    story(tiny_disk)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount command")
def test_a_follower_with_a_full_disk_leaves_the_isr_and_returns_later(tiny_disk: Path) -> None:
    @in_cluster(config={"replica.lag.time.max.ms": "500"})
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await talk.broker("create_topic", ["t", 1, 3, [[2, 1, 3]], {}, False, 5000])
        await talk.whole("t")
        ballast = tiny_disk / "broker-1" / "ballast"
        ballast.write_bytes(bytes(300_000))
        for _ in range(20):
            await talk.produce("t", os.urandom(20_000))
        row = await talk.until("t", lambda found: found.isr == [2, 3])
        assert row.leader == 2
        ballast.unlink()
        await asyncio.to_thread(
            subprocess.run, ["mount", "-o", "remount,size=4m", str(tiny_disk / "broker-1")], check=True, timeout=30
        )
        await talk.whole("t")

    story(tiny_disk)
