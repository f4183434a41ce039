"""What acks=1 promises: the record is on the disk of a replica, also of one that a reassignment has just removed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raylog.actors.naming import replica_name
from raylog.base.ids import BrokerId
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import TopicCreated
from tests.simulation.whole.books import At
from tests.simulation.whole.observer import Observer
from tests.simulation.world import Violation

pytestmark = pytest.mark.sim

ID = "a" * 32


def server(end: int) -> Any:
    """A replica's server with a log that is on the disk up to an offset."""
    log = SimpleNamespace(synced_end_offset=end)
    return SimpleNamespace(_runner=SimpleNamespace(_flush=SimpleNamespace(before_acknowledging=True), log=log))


def observer(ends: dict[int, int], ended: dict[int, int]) -> Observer:
    """Of a partition on brokers 1 and 2, and replicas with logs up to these offsets, by broker."""
    image = MetadataImage()
    partitions = ((BrokerId(1), BrokerId(2)),)
    image.apply(TopicCreated(topic_id=ID, topic="t", config={}, partitions=partitions))
    names = {broker: replica_name("t", 0, broker, ID) for broker in (1, 2, 3)}
    actors = {names[broker]: SimpleNamespace(server=server(end)) for broker, end in ends.items()}
    cluster = SimpleNamespace(
        brokers=3,
        actors=actors,
        ended={names[broker]: server(end) for broker, end in ended.items()},
        controller=lambda: SimpleNamespace(image=image, _runner=SimpleNamespace(machine=SimpleNamespace(image=image))),
    )
    found = Observer.__new__(Observer)  # one that watches nothing: its constructor patches the shipped classes
    found._world = SimpleNamespace(cluster=cluster, elected_s={})  # type: ignore[assignment]
    return found


@pytest.mark.parametrize(
    ("ends", "ended"),
    [({1: 4, 2: 5}, {}), ({1: 4, 2: 4, 3: 5}, {}), ({1: 4, 2: 4}, {3: 5}), ({1: 4}, {})],
    ids=["a replica", "a leader that was removed", "one that has ended since", "perhaps the one that is unknown"],
)
def test_a_record_of_acks_1_is_on_one_disk(ends: dict[int, int], ended: dict[int, int]) -> None:
    observer(ends, ended).written(At("t", 0), 5, "it was acknowledged", 1.0)


@pytest.mark.parametrize(("ends", "ended"), [({1: 4, 2: 4}, {}), ({1: 4, 2: 4, 3: 4}, {}), ({1: 4, 2: 4}, {3: 4})])
def test_a_record_of_acks_1_on_no_disk_is_a_violation(ends: dict[int, int], ended: dict[int, int]) -> None:
    with pytest.raises(Violation, match="on its disk"):
        observer(ends, ended).written(At("t", 0), 5, "it was acknowledged", 1.0)
