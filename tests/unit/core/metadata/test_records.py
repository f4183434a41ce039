"""The wire forms of metadata records, and an image that refuses records that do not fit."""

from collections.abc import Iterator, Mapping
from typing import Any, get_origin

import pytest
from msgspec.structs import fields

from raylog.base.ids import BrokerId, Incarnation, LeaderEpoch, PartitionEpoch, ProducerId
from raylog.base.invariants import InvariantBroken
from raylog.core.metadata.applying import APPLY
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import (
    RECORD_TYPES,
    BrokerOffline,
    ClusterCreated,
    MetadataRecord,
    PartitionChanged,
    ProducerIdsAllocated,
    ReplicaLogLost,
    ReplicaPlaced,
    TopicCreated,
    TopicDeleted,
    record_from_wire,
)

CREATED = TopicCreated(
    topic_id="f" * 32, topic="t", config={"b": "2", "a": "1"}, partitions=((BrokerId(1), BrokerId(2)),)
)


def kinds_of(kind: type[MetadataRecord]) -> Iterator[type[MetadataRecord]]:
    for found in kind.__subclasses__():
        yield found
        yield from kinds_of(found)


def test_every_record_type_has_a_wire_form_and_a_place_in_the_image() -> None:
    for name, kind in RECORD_TYPES.items():
        assert name == kind.__name__
        assert fields(kind), name
    assert set(RECORD_TYPES.values()) == set(APPLY)
    assert set(RECORD_TYPES) == {kind.__name__ for kind in kinds_of(MetadataRecord)}


def test_a_wire_form_is_made_of_plain_lists_and_sorted_mappings() -> None:
    wire = CREATED.to_wire()
    assert wire == ["TopicCreated", "f" * 32, "t", {"a": "1", "b": "2"}, [[1, 2]]]
    assert list(wire[3]) == ["a", "b"]  # type: ignore[call-overload]
    assert record_from_wire(wire) == CREATED


@pytest.mark.parametrize(
    "wire",
    [
        [],
        ["Nonsense", 1],
        ["BrokerOffline"],
        ["BrokerOffline", "one"],
        ["BrokerOffline", True],
        ["TopicDeleted", 1, "t"],
        ["TopicCreated", "f", "t", [], []],
        ["TopicCreated", "f", "t", {"a": 1}, []],
        ["TopicCreated", "f", "t", {}, 5],
    ],
)
def test_a_malformed_wire_form_is_refused(wire: list[object]) -> None:
    with pytest.raises(ValueError):
        record_from_wire(wire)


def test_fields_of_a_later_release_behind_the_known_ones_are_ignored() -> None:
    assert record_from_wire([*CREATED.to_wire(), {"of": "a later release"}]) == CREATED


def test_fields_missing_in_an_earlier_release_become_their_defaults() -> None:
    samples: dict[Any, object] = {Mapping: {}, tuple: [], str: "x"}
    for name, kind in RECORD_TYPES.items():
        layout = fields(kind)
        last = max(place for place, field in enumerate(layout) if field.required)
        values = [samples.get(get_origin(field.type) or field.type, 1) for field in layout[: last + 1]]
        record = record_from_wire([name, *values])
        assert all(getattr(record, field.name) == field.default for field in layout[last + 1 :])


def test_a_record_type_of_a_later_release_is_one_clear_error() -> None:
    with pytest.raises(ValueError, match=r"unknown metadata record 'ScheduleMoved'.*; install that release"):
        record_from_wire(["ScheduleMoved", 1])


def test_a_record_of_another_form_is_one_clear_error() -> None:
    row = ["BrokerRegistered", 1, 2, "n", "h", 9, "d", 1, 1, -1, []]  # with a field that is no longer there
    with pytest.raises(ValueError, match=r"metadata record BrokerRegistered .*expected array.*install that release"):
        record_from_wire(row)


def image_with_topic() -> MetadataImage:
    image = MetadataImage()
    image.apply(ClusterCreated(cluster_id="c", config={}))
    image.apply(CREATED)
    return image


@pytest.mark.parametrize(
    "record",
    [
        ClusterCreated(cluster_id="d", config={}),
        CREATED,
        BrokerOffline(broker=BrokerId(9)),
        TopicDeleted(topic_id="0" * 32, topic="t"),
        ProducerIdsAllocated(next_id=ProducerId(0)),
        ReplicaLogLost(topic="t", partition=0, broker=BrokerId(3)),
        ReplicaPlaced(topic="t", partition=0, broker=BrokerId(3), incarnation=Incarnation(1), host="h", port=1),
        ReplicaPlaced(topic="t", partition=1, broker=BrokerId(1), incarnation=Incarnation(1), host="h", port=1),
        PartitionChanged(
            topic="t",
            partition=0,
            leader=BrokerId(1),
            leader_epoch=LeaderEpoch(1),
            isr=(BrokerId(1),),
            replicas=(BrokerId(1),),
            partition_epoch=PartitionEpoch(0),
        ),
    ],
)
def test_an_image_refuses_a_record_that_does_not_fit(record: MetadataRecord) -> None:
    image = image_with_topic()
    before = image.copy()
    with pytest.raises(InvariantBroken):
        image.apply(record)
    assert image == before


def test_a_copy_is_equal_and_independent() -> None:
    image = image_with_topic()
    copy = image.copy()
    assert copy == image
    copy.apply(TopicDeleted(topic_id="f" * 32, topic="t"))
    assert copy != image
    assert "t" in image.topics
