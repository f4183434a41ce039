"""What counts as left over at the end: a process or a folder that the metadata have no place for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raylog.actors.naming import replica_name
from raylog.base.ids import BrokerId, Incarnation
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import (
    BrokerRegistered,
    BrokerStopped,
    MetadataRecord,
    PartitionsBornAsleep,
    TopicCreated,
    TopicDeleted,
)
from tests.simulation.whole.cluster import Actor, Cluster
from tests.simulation.whole.leftovers import leftover

pytestmark = pytest.mark.sim

ONE, TWO = BrokerId(1), BrokerId(2)
OLD, NEW = "a" * 32, "b" * 32
CREATED = TopicCreated(topic_id=OLD, topic="t", config={}, partitions=((ONE,), (TWO,)))
DELETED = TopicDeleted(topic_id=OLD, topic="t")
AGAIN = TopicCreated(topic_id=NEW, topic="t", config={}, partitions=((ONE,),))
REGISTERED = BrokerRegistered(
    broker=ONE, incarnation=Incarnation(1), node_id="n", host="h", port=1, directory_id="directory"
)


def found(root: Path, names: list[str], *records: MetadataRecord) -> str:
    """What is left over where these actors run, beside broker 1, by the metadata of these records."""
    image = MetadataImage()
    for record in records:
        image.apply(record)
    cluster: Any = Cluster(scheduler=None, network=None, root=root)  # type: ignore[arg-type]
    for name in ["controller", "broker-1", *names]:
        cluster.actors[name] = Actor(name, (), lambda _: None, serves=True)
    cluster.actors["controller"].server = SimpleNamespace(image=image, _runner=object())
    cluster.actors["broker-1"].server = SimpleNamespace(spec=SimpleNamespace(broker=1))
    (root / "broker-1").mkdir(exist_ok=True)
    return leftover(SimpleNamespace(cluster=cluster))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "records", "is_left"),
    [
        (replica_name("t", 0, 1, OLD), (CREATED,), False),
        (replica_name("t", 1, 1, OLD), (CREATED,), True),
        (replica_name("t", 0, 1, OLD), (CREATED, DELETED), True),
        (replica_name("t", 0, 1, OLD), (CREATED, DELETED, AGAIN), True),
        (replica_name("t", 0, 1, NEW), (CREATED, DELETED, AGAIN), False),
        (replica_name("t", 0, 1, OLD), (CREATED, PartitionsBornAsleep(topic="t", first=0, end=1)), True),
        (replica_name("t", 0, 1, OLD), (REGISTERED, CREATED, BrokerStopped(broker=ONE)), True),
    ],
    ids=["placed here", "placed elsewhere", "deleted", "its namesake", "created again", "asleep", "its broker stopped"],
)
def test_a_process_is_left_where_no_partition_wants_it(
    tmp_path: Path, name: str, records: tuple[MetadataRecord, ...], *, is_left: bool
) -> None:
    assert found(tmp_path, [name], *records) == (f"{name} has a process" if is_left else "")


def test_a_folder_is_left_where_its_topic_was_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "broker-1" / "t-0"
    folder.mkdir(parents=True)
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {OLD}\n")
    assert not found(tmp_path, [], CREATED)
    assert "t-0" in found(tmp_path, [], CREATED, DELETED, AGAIN)
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {NEW}\n")
    assert not found(tmp_path, [], CREATED, DELETED, AGAIN)
