"""The cluster's feature level: which brokers may register, when it rises, and what it allows."""

from collections.abc import Iterator
from unittest import mock

import pytest

from raylog.base.errors import InvalidRequest, UnsupportedVersion
from raylog.base.features import FIRST, FIRST_LEVEL, LEVELS, SUPPORTED, LevelRange, misfit
from raylog.base.ids import BrokerId
from raylog.base.invariants import InvariantBroken
from raylog.core.controller.controller import ControllerMachine
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import (
    BrokerRegistered,
    ClusterCreated,
    FeatureLevelRaised,
    TopicDeleted,
    record_from_wire,
)
from raylog.protocol.admin import RaiseFeatureLevelRequest, StopBrokerRequest
from raylog.rpc.auth.handshake import FEATURE_LEVEL
from tests.unit.core.controller.bench import AWAKE, Bench

NEXT = LevelRange(1, 3)


def raised(bench: Bench, level: int = -1) -> list[object]:
    return bench.call(RaiseFeatureLevelRequest(level=level))


def of_first_release() -> Bench:
    """A cluster that the first release began, with three brokers of that release; its controller is of a later one."""
    bench = Bench(log=[ClusterCreated(cluster_id="c" * 32, config=AWAKE)]).start()
    for broker in (1, 2, 3):
        bench.broker(broker, levels=FIRST)
    return bench


def upgraded(*brokers: int) -> Bench:
    """The same, with these brokers of the later release too."""
    bench = of_first_release()
    for broker in brokers:
        bench.broker(broker, levels=NEXT)
    return bench


@pytest.fixture(autouse=True)
def _later_controller() -> Iterator[None]:
    """The controller is of a later release."""
    with (
        mock.patch("raylog.core.controller.registrations.SUPPORTED", NEXT),
        mock.patch("raylog.core.controller.controller.SUPPORTED", NEXT),
    ):
        yield


def test_this_release_states_the_same_level_everywhere() -> None:
    assert SUPPORTED.highest == max(LEVELS) == FEATURE_LEVEL
    assert sorted(LEVELS) == list(range(FIRST_LEVEL, SUPPORTED.highest + 1))


def test_a_new_cluster_begins_at_the_highest_level_of_its_controller() -> None:
    bench = Bench().start()
    assert bench.image.feature_level == NEXT.highest
    with pytest.raises(UnsupportedVersion, match="level 1 to 2, and this cluster is at level 3: install a newer"):
        bench.broker(1, levels=LevelRange(1, 2))
    bench.broker(1, levels=NEXT)
    assert bench.start().image.feature_level == NEXT.highest


def test_a_new_cluster_of_the_first_release_states_no_level() -> None:
    with mock.patch("raylog.core.controller.controller.SUPPORTED", FIRST):
        bench = Bench().start()
    assert bench.image.feature_level == FIRST_LEVEL
    assert not any(isinstance(record, FeatureLevelRaised) for record in bench.log)
    bench.broker(1, levels=FIRST)


def test_a_cluster_of_an_earlier_release_keeps_its_level_in_later_lives() -> None:
    bench = of_first_release()
    assert bench.image.feature_level == bench.start().image.feature_level == FIRST_LEVEL


def test_the_level_stays_until_it_is_requested_and_every_broker_has_it() -> None:
    bench = upgraded(1, 2)
    assert bench.image.feature_level == 1
    with pytest.raises(UnsupportedVersion, match="not known to broker 3;") as refused:
        raised(bench, 2)
    assert refused.value.details["brokers"] == ["3"]
    assert raised(bench) == [1, 1]
    bench.broker(3, levels=LevelRange(1, 2))
    assert bench.image.feature_level == 1
    assert raised(bench) == [2, 1]
    assert bench.image.feature_level == 2
    assert raised(bench) == [2, 2]


def test_an_absent_broker_counts_and_a_stopped_one_does_not() -> None:
    bench = upgraded(1, 2)
    bench.lose(("broker", 3))
    with pytest.raises(UnsupportedVersion, match="broker 3"):
        raised(bench, 3)
    bench.call(StopBrokerRequest(broker=3, force=False))
    assert raised(bench, 3) == [3, 1]


def test_the_controller_s_own_release_counts() -> None:
    bench = of_first_release()
    for broker in (1, 2, 3):
        bench.broker(broker, levels=LevelRange(1, 4))
    with pytest.raises(UnsupportedVersion, match="The controller's release knows feature level 1 to 3, not 4"):
        raised(bench, 4)
    assert raised(bench) == [3, 1]


def test_a_level_never_falls() -> None:
    bench = upgraded(1, 2, 3)
    raised(bench, 2)
    with pytest.raises(InvalidRequest, match="cannot fall to 1"):
        raised(bench, 1)


def test_a_broker_that_does_not_know_the_level_is_refused_in_one_sentence() -> None:
    bench = upgraded(1, 2, 3)
    raised(bench)
    with pytest.raises(UnsupportedVersion, match="level 1, and this cluster is at level 3: install a newer"):
        bench.broker(2, levels=FIRST)
    with pytest.raises(UnsupportedVersion, match=r"needs feature level 4 at least.*raylog features upgrade"):
        bench.broker(2, levels=LevelRange(4, 5))
    bench.broker(2, levels=LevelRange(2, 5))


def test_a_controller_that_does_not_know_the_level_does_not_start() -> None:
    bench = upgraded(1, 2, 3)
    raised(bench)
    rows = [record.to_wire() for record in bench.image.to_records()]
    image = MetadataImage.restore(bench.image.version, map(record_from_wire, rows))
    assert image == bench.image
    with (
        mock.patch("raylog.core.controller.controller.SUPPORTED", FIRST),
        pytest.raises(UnsupportedVersion, match="The controller runs a release of Raylog that knows feature level 1,"),
    ):
        ControllerMachine(image, settings=bench.machine._settings, now_ms=bench.now)


def test_a_record_of_a_later_level_is_never_written_below_it() -> None:
    bench = upgraded(1, 2, 3)
    bench.create()
    with mock.patch.object(TopicDeleted, "LEVEL", 2):
        record = TopicDeleted(topic_id=bench.topic_id(), topic="flights")
        with pytest.raises(InvariantBroken, match="feature level 2 allows"):
            bench.machine._decision("test", bench.now).write(record)
        raised(bench, 2)
        bench.machine._decision("test", bench.now).write(record)


def test_metadata_of_an_earlier_release_is_at_the_first_level() -> None:
    row = ["BrokerRegistered", 1, 5, "node", "host", 9000, "d" * 32]
    record = record_from_wire(row)
    assert isinstance(record, BrokerRegistered)
    image = MetadataImage()
    image.apply(record)
    assert image.brokers[BrokerId(1)].levels == FIRST
    assert image.feature_level == 1
    with pytest.raises(InvariantBroken):
        image.apply(FeatureLevelRaised(level=1))


def test_sentences_name_the_range() -> None:
    assert "level 1 to 3," in misfit("Broker 1", NEXT, 4)
