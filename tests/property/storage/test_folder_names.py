"""No legal topic loses its folders to a cleaner, and every legal name can be opened, locked and deleted."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raylog.actors.replica.set_aside import (
    DAMAGED,
    DELETED,
    REPLACED,
    clear_half_deleted,
    clear_replaced,
    remove_partition_folder,
    set_aside,
)
from raylog.base.errors import InvalidTopic
from raylog.core.controller.topics import PARTITIONS_MAX, TOPIC_NAME_LENGTH_MAX, validate_topic_name
from raylog.storage.directory import parse_partition_folder, partition_folder
from raylog.storage.folder_lock import FolderLock, lock_path
from raylog.storage.log.config import LogConfig
from raylog.storage.log.partition_log import PartitionLog
from tests.property.storage import in_memory

TOPIC_ID = "0123456789abcdef0123456789abcdef"
MARKS = (".deleted-", ".replaced-", ".damaged-", ".lock", ".tmp", "-0", ".deleted", ".", "-", "1700000000000")
plain = st.text("abzAZ019._-", min_size=1, max_size=30)
marked = st.lists(st.one_of(st.sampled_from(MARKS), plain), min_size=1, max_size=5).map("".join)
long = st.integers(200, TOPIC_NAME_LENGTH_MAX).map(lambda length: "x" * length)
topics = st.one_of(plain, marked, long)
partitions = st.integers(0, PARTITIONS_MAX - 1)


def legal(topic: str) -> bool:
    try:
        validate_topic_name(topic)
    except InvalidTopic:
        return False
    return True


def make(folder: Path, topic: str, partition: int) -> None:
    folder.mkdir()
    lines = f"version: 0\ntopic_id: {TOPIC_ID}\ntopic: {topic}\npartition: {partition}\n"
    (folder / "partition.metadata").write_text(lines, encoding="utf-8")


@settings(deadline=None)
@given(topic=topics.filter(legal), partition=partitions)
@example("orders-v1.deleted-items", 0)
@example("a-b.replaced-c", 0)
@example("orders-0.deleted", 9999)
@example("t-0.deleted-1700000000000", 0)
@example(".deleted", 0)
@example("x" * 249, 9999)
def test_no_legal_partition_matches_a_cleaner(topic: str, partition: int) -> None:
    with TemporaryDirectory(dir=in_memory.FOLDER) as name:
        root = Path(name)
        folder = partition_folder(root, topic, partition)
        make(folder, topic, partition)
        FolderLock(folder).release()
        assert parse_partition_folder(folder.name) == (topic, partition)
        assert folder.name not in (DELETED, REPLACED, DAMAGED)
        assert parse_partition_folder(lock_path(folder).name) is None
        clear_half_deleted(root)
        clear_replaced(root, {TOPIC_ID})
        assert folder.exists(), "every start of the broker would remove a living topic"
        remove_partition_folder(folder, TOPIC_ID)
        assert [path.name for path in root.iterdir()] == [DELETED]
        assert list((root / DELETED).iterdir()) == []


@pytest.mark.parametrize("length", [231, 232, 249])
def test_the_longest_names_are_opened_set_aside_and_deleted(tmp_path: Path, length: int) -> None:
    topic, partition = "x" * length, PARTITIONS_MAX - 1
    validate_topic_name(topic)
    folder = partition_folder(tmp_path, topic, partition)
    lock = FolderLock(folder)
    for mark in (DAMAGED, REPLACED):
        log = PartitionLog.open(folder, LogConfig(), topic_id=TOPIC_ID, topic=topic, partition=partition, now_ms=0)
        log.close()
        assert set_aside(folder, mark, TOPIC_ID, partition).is_dir()
    lock.release()
    clear_replaced(tmp_path, {TOPIC_ID})
    assert list((tmp_path / REPLACED).iterdir()) == []
    assert len(list((tmp_path / DAMAGED).iterdir())) == 1, "an operator decides about damage"
