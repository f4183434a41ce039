"""Traces of the earlier incarnation in a replica's folder: a new log, and a machine failure with unsynced records."""

import os
import shutil
from pathlib import Path

import pytest

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.clock import wall_ms
from raylog.actors.replica import opening as replica_log
from raylog.actors.replica.damage import DamageWatch, give_up
from raylog.actors.replica.opening import OpenedLog, forget_cut, note_boot, open_replica_log
from raylog.base.ids import Offset, TopicPartition
from raylog.core.replication.damage import RebuildLog
from raylog.storage.directory import partition_folder
from raylog.storage.log.kept_watermark import KeptWatermark
from raylog.storage.log.partition_log import LogConfig
from tests.simulation.storage.disk import VirtualDisk
from tests.simulation.storage.filesystem import VirtualFileSystem
from tests.unit.actors.specs import replica_spec
from tests.unit.storage.logs import produced


@pytest.fixture
def spec(tmp_path: Path) -> ReplicaSpec:
    return replica_spec(tmp_path, topic_id="a" * 32, replication_factor=3)


def opened(spec: ReplicaSpec, *, syncs_first: bool = False) -> OpenedLog:
    return open_replica_log(spec, LogConfig(), syncs_first)


def end(found: OpenedLog, spec: ReplicaSpec, *, cleanly: bool = False) -> None:
    """End an incarnation; not cleanly: the folder stays as it is while the log is open."""
    folder = partition_folder(spec.data_directory, spec.topic, spec.partition)
    aside = folder.with_name("aside")
    if not cleanly:
        shutil.copytree(folder, aside)
    found.log.close()
    found.lock.release()
    if not cleanly:
        shutil.rmtree(folder)
        aside.rename(folder)


def reboot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "boot_id"
    other.write_text("another-boot\n", encoding="ascii")
    monkeypatch.setattr(replica_log, "BOOT_ID", other)


def test_a_new_log_is_lost_and_nothing_else(spec: ReplicaSpec) -> None:
    found = opened(spec)
    assert (found.log_lost, found.unsynced_lost) == (True, False)
    end(found, spec, cleanly=True)


def test_a_killed_process_leaves_its_records_with_the_operating_system(spec: ReplicaSpec) -> None:
    end(opened(spec), spec)
    found = opened(spec)
    assert (found.log_lost, found.unsynced_lost) == (False, False)
    end(found, spec, cleanly=True)


@pytest.mark.parametrize("relaxed", ["before", "now"])
def test_a_crashed_machine_may_have_lost_records_acknowledged_unsynced(
    spec: ReplicaSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, relaxed: str
) -> None:
    end(opened(spec, syncs_first=relaxed != "before"), spec)
    reboot(monkeypatch, tmp_path)
    found = opened(spec, syncs_first=relaxed != "now")
    assert found.unsynced_lost
    end(found, spec)
    found = opened(spec)
    assert found.unsynced_lost, "the loss is not reported yet"
    note_boot(spec, syncs_first=False)
    end(found, spec)
    again = opened(spec)
    assert not again.unsynced_lost, "the same boot: what is there now stays there"
    end(again, spec, cleanly=True)


def test_what_is_synced_before_it_is_acknowledged_survives_the_machine(
    spec: ReplicaSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    end(opened(spec, syncs_first=True), spec)
    reboot(monkeypatch, tmp_path)
    found = opened(spec, syncs_first=True)
    assert not found.unsynced_lost
    end(found, spec, cleanly=True)


def test_a_log_that_was_closed_cleanly_survives_the_machine(
    spec: ReplicaSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    end(opened(spec), spec, cleanly=True)
    reboot(monkeypatch, tmp_path)
    found = opened(spec)
    assert not found.unsynced_lost
    end(found, spec, cleanly=True)


def test_the_policy_of_the_last_boot_is_known_after_a_power_cut(
    spec: ReplicaSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for seed in range(20):
        files, disk = VirtualFileSystem(), VirtualDisk(seed)
        files.mount(spec.data_directory, disk)
        with files.bound(), monkeypatch.context() as patch:
            opened(spec, syncs_first=True).log.close()
            disk.kill()
            opened(spec, syncs_first=False)
            disk.lose_power()
            patch.setattr(replica_log, "BOOT_ID", tmp_path / "none")
            assert opened(spec, syncs_first=True).unsynced_lost


def test_a_log_that_its_last_life_found_damaged_is_set_aside(spec: ReplicaSpec) -> None:
    first = opened(spec)
    first.log.close()
    first.lock.release()
    watch, ended = DamageWatch(TopicPartition("t", 0)), list[str]()
    watch.last = "its CRC is wrong"
    give_up(watch, first.log.folder, RebuildLog(cause="damage", offset=Offset(3)), ended.append)
    assert "offset 3" in ended[0]
    again = opened(spec)
    assert again.log_lost
    assert "its CRC is wrong" in again.damage
    assert again.log.log_id != first.log.log_id
    assert len(list((spec.data_directory / ".damaged").iterdir())) == 1
    again.log.close()
    again.lock.release()
    third = opened(spec)
    assert (third.damage, third.log_lost) == ("", False), "once"
    third.log.close()
    third.lock.release()


def torn(spec: ReplicaSpec, *, syncs_first: bool) -> OpenedLog:
    """A killed life has four committed records, of which the log has lost the last one."""
    first = opened(spec, syncs_first=syncs_first)
    for number in range(4):
        first.log.append_as_leader(bytearray(produced(number)), 0, wall_ms())
    kept = KeptWatermark(first.log.folder, 4)
    kept.want(4)
    kept.keep()
    end(first, spec)
    path = next(first.log.folder.glob("*.log"))
    os.truncate(path, path.stat().st_size - 3)
    return opened(spec, syncs_first=syncs_first)


def test_a_log_without_its_committed_end_is_set_aside(spec: ReplicaSpec) -> None:
    found = torn(spec, syncs_first=True)
    assert (found.log_lost, found.unsynced_lost) == (True, False)
    assert "offset 3" in found.damage
    assert found.log.log_end_offset == 0
    end(found, spec, cleanly=True)


def test_acknowledged_records_that_are_missing_are_reported(
    spec: ReplicaSpec, caplog: pytest.LogCaptureFixture
) -> None:
    found = torn(spec, syncs_first=False)
    assert (found.log_lost, found.unsynced_lost, found.damage) == (False, True, "")
    assert found.end_cut
    assert found.log.log_end_offset == 3
    assert "from offset 3 to 3 are missing" in caplog.text
    assert "were cut off behind offset 3" in caplog.text
    end(found, spec, cleanly=True)
    forget_cut(spec)


def test_a_leader_that_lost_unsynced_records_as_all_others_leads_on(
    spec: ReplicaSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reboot(monkeypatch, tmp_path)
    found = torn(spec, syncs_first=False)
    assert found.end_cut, "the same boot"
    end(found, spec)
    other = tmp_path / "third"
    other.write_text("a third boot\n", encoding="ascii")
    monkeypatch.setattr(replica_log, "BOOT_ID", other)
    again = opened(spec, syncs_first=False)
    assert (again.unsynced_lost, again.end_cut) == (True, False)
    end(again, spec, cleanly=True)


@pytest.mark.parametrize("reported", [False, True])
def test_a_torn_end_is_reported_until_the_controller_knows_it(spec: ReplicaSpec, reported: bool) -> None:
    first = opened(spec, syncs_first=True)
    for number in range(4):
        first.log.append_as_leader(bytearray(produced(number)), 0, wall_ms())
    end(first, spec)
    path = next(first.log.folder.glob("*.log"))
    os.truncate(path, path.stat().st_size - 3)
    found = opened(spec, syncs_first=True)
    assert (found.log_lost, found.unsynced_lost, found.end_cut) == (False, False, True)
    if reported:
        forget_cut(spec)
    end(found, spec)
    again = opened(spec, syncs_first=True)
    assert again.end_cut is not reported
    end(again, spec, cleanly=True)
