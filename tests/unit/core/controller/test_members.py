"""Brokers, coordinators, producer ids, and the incarnations of the controller itself."""

from typing import get_args, get_type_hints

import pytest

from raylog.base.errors import (
    CoordinatorNotAvailable,
    DataDirectoryError,
    InconsistentClusterId,
    InvalidConfig,
    InvalidRequest,
    NotController,
    StaleBrokerEpoch,
)
from raylog.base.ids import BrokerId
from raylog.base.invariants import InvariantBroken
from raylog.core.controller.controller import ControllerMachine
from raylog.core.controller.coordinators import PRODUCER_EPOCHS, keeps_producer
from raylog.core.controller.decision import ControllerSettings
from raylog.core.controller.events import CloseSession, ControllerRequest, StartCoordinator
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import record_from_wire
from raylog.protocol.admin import DescribeClusterRequest
from tests.unit.core.controller.bench import (
    DEFAULTS,
    GRACE_MS,
    TIMEOUT_MS,
    Bench,
    received,
    running_topic,
    three_brokers,
)

# ---------------------------------------------------------------- the controller itself


@pytest.fixture
def bench() -> Bench:
    return three_brokers()


def test_the_first_life_gives_the_cluster_its_identity_and_configuration() -> None:
    bench = Bench().start({"num.partitions": "3"})
    assert len(bench.image.cluster_id) == 32
    assert bench.image.config == {**DEFAULTS, "num.partitions": "3"}
    assert bench.image.controller_epoch == 1


def test_each_life_takes_the_next_controller_epoch_and_keeps_the_cluster() -> None:
    bench = Bench().start()
    cluster = bench.image.cluster_id
    bench.start()
    assert (bench.image.cluster_id, bench.image.controller_epoch) == (cluster, 2)


def test_a_later_life_lays_its_configuration_over_the_present_one() -> None:
    bench = Bench().start({"num.partitions": "3", "group.max.size": "9"})
    bench.start({"num.partitions": "5"})
    assert bench.image.config == {**DEFAULTS, "num.partitions": "5", "group.max.size": "9"}


def test_an_illegal_cluster_configuration_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"num\.partitions"):
        Bench().start({"num.partition": "3"})


def test_a_controller_starts_once_and_before_its_first_step() -> None:
    settings = ControllerSettings(new_topic_id=lambda: "f" * 32)
    machine = ControllerMachine(MetadataImage(), settings=settings, now_ms=0)
    with pytest.raises(InvariantBroken):
        machine.step(received(DescribeClusterRequest(), 0))
    machine.start(0)
    with pytest.raises(InvariantBroken):
        machine.start(0)


def test_the_description_names_what_an_operator_looks_for() -> None:
    bench = running_topic()
    bench.isr(1, [1])
    bench.lose_replica(1)
    bench.replica(1, log_lost=True)
    described = bench.described()
    assert described["leaderless_partitions"] == ["flights-0"]
    assert described["under_replicated_partitions"] == ["flights-0"]
    assert described["lost_logs"] == [["flights-0", 1]]


def test_every_request_has_a_handler_that_takes_it() -> None:
    handlers = Bench().start().machine._handlers
    assert set(handlers) == set(get_args(ControllerRequest))
    for message, handler in handlers.items():
        assert get_args(get_type_hints(handler)["event"]) == (message,)


# ---------------------------------------------------------------- brokers


def test_a_broker_gets_its_incarnation_and_a_snapshot_that_includes_it() -> None:
    bench = running_topic()
    incarnation, cluster_id, epoch, version, records, broker = bench.broker(4)
    assert broker == 4
    assert isinstance(version, int)
    assert isinstance(records, list)
    image = MetadataImage.restore(version, [record_from_wire(row) for row in records])
    assert image == bench.image
    assert image.brokers[BrokerId(4)].incarnation == incarnation
    assert (cluster_id, epoch) == (image.cluster_id, image.controller_epoch)


def test_a_directory_without_an_id_gets_the_next_free_one_and_keeps_it(bench: Bench) -> None:
    assert bench.broker(-1, directory="fresh")[5] == 4
    assert bench.broker(-1, directory="fresh")[5] == 4
    assert bench.broker(-1, directory="other")[5] == 5
    bench.start()
    assert bench.broker(-1, directory="fresh")[5] == 4
    assert [broker.directory_id for broker in bench.image.online_brokers()][3:] == ["fresh", "other"]


def test_published_records_keep_an_image_up_to_date(bench: Bench) -> None:
    image = bench.image.copy()
    for change in (lambda: bench.create(), lambda: bench.lose(("broker", 3)), lambda: bench.producer_ids()):
        change()
        [publish] = bench.published()
        assert publish.from_version == image.version
        for record in publish.records:
            image.apply(record)
        assert image == bench.image


def test_a_registering_broker_is_not_sent_the_step_that_its_snapshot_has(bench: Bench) -> None:
    others = set(bench.sessions.values())
    bench.broker(4)
    assert set(bench.published()[0].sessions) == others


def test_a_broker_of_another_cluster_is_refused(bench: Bench) -> None:
    bench.broker(1, cluster=bench.image.cluster_id)
    with pytest.raises(InconsistentClusterId):
        bench.broker(4, cluster="another")


def test_a_lost_broker_is_offline_and_its_replicas_go_on() -> None:
    bench = running_topic()
    bench.lose(("broker", 1))
    assert not bench.image.brokers[BrokerId(1)].online
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_a_silent_broker_is_offline_after_the_session_timeout(bench: Bench) -> None:
    bench.silent.add(bench.sessions["broker", 2])
    bench.wait(TIMEOUT_MS + 500)
    assert [broker.broker for broker in bench.image.online_brokers()] == [1, 3]


def test_only_the_present_incarnation_of_a_broker_is_resumed(bench: Bench) -> None:
    old = bench.lives["broker", 1]
    bench.broker(1, incarnation=old)
    assert bench.lives["broker", 1] == old
    bench.broker(1)
    assert bench.lives["broker", 1] > old
    with pytest.raises(StaleBrokerEpoch):
        bench.broker(1, incarnation=old)


def test_a_broker_that_was_counted_as_dead_is_online_when_it_returns(bench: Bench) -> None:
    bench.lose(("broker", 1))
    bench.broker(1, incarnation=bench.lives["broker", 1])
    assert bench.image.brokers[BrokerId(1)].online


def test_two_directories_cannot_be_the_same_broker(bench: Bench) -> None:
    with pytest.raises(DataDirectoryError):
        bench.broker(1, directory="elsewhere")
    bench.start()
    with pytest.raises(NotController):
        bench.broker(1, directory="elsewhere")
    bench.wait(GRACE_MS)
    bench.broker(1, directory="elsewhere")
    assert bench.image.brokers[BrokerId(1)].directory_id == "elsewhere"


def test_brokers_that_stay_away_are_offline_after_the_grace_period() -> None:
    bench = three_brokers().start()
    bench.broker(2, incarnation=bench.lives["broker", 2])
    bench.wait(GRACE_MS - 1)
    assert len(bench.image.online_brokers()) == 3
    bench.wait(1)
    assert [broker.broker for broker in bench.image.online_brokers()] == [2]


# ---------------------------------------------------------------- coordinators


def test_a_coordinator_is_started_with_its_topic_on_first_use(bench: Bench) -> None:
    assert bench.ensure() == []
    assert [len(state.replicas) for state in bench.image.topics["__consumer_offsets"].partitions] == [3]
    assert [(found.kind, found.index) for found in bench.effects if isinstance(found, StartCoordinator)] == [
        ("group", 0)
    ]


def test_the_coordinators_topic_has_at_most_one_replica_a_broker() -> None:
    bench = Bench().start()
    bench.broker(1)
    bench.ensure()
    assert bench.image.topics["__consumer_offsets"].partitions[0].replicas == (1,)


def test_no_coordinator_without_a_broker() -> None:
    with pytest.raises(CoordinatorNotAvailable):
        Bench().start().ensure()


def starts(bench: Bench) -> int:
    bench.ensure()
    return sum(isinstance(found, StartCoordinator) for found in bench.effects)


def test_a_coordinator_is_started_again_only_when_it_does_not_register(bench: Bench) -> None:
    assert [starts(bench), starts(bench)] == [1, 0]
    bench.wait(5_000)
    assert [starts(bench), starts(bench)] == [1, 0]
    bench.coordinator()
    bench.wait(5_000)
    assert starts(bench) == 0
    bench.lose(("group", 0))
    assert starts(bench) == 1


def test_a_coordinator_exists_for_each_partition_of_known_kinds_only(bench: Bench) -> None:
    with pytest.raises(InvalidRequest):
        bench.ensure(1)
    with pytest.raises(InvalidRequest, match="group"):
        bench.ensure(kind="groups")
    with pytest.raises(CoordinatorNotAvailable):
        bench.coordinator(7)


def test_each_coordinator_incarnation_gets_the_next_producer_epoch(bench: Bench) -> None:
    bench.ensure()
    bench.producer_ids(10)
    assert bench.coordinator() == [0, 10, 0, DEFAULTS]
    assert bench.coordinator() == [1, 10, 1, DEFAULTS]
    assert bench.coordinator(epoch=1) == [1, 10, 1, DEFAULTS]
    with pytest.raises(StaleBrokerEpoch):
        bench.coordinator(epoch=0)
    assert bench.image.next_producer_id == 11


def test_a_newer_connection_of_a_coordinator_closes_the_older_one(bench: Bench) -> None:
    bench.ensure()
    bench.coordinator()
    old = bench.sessions["group", 0]
    bench.coordinator()
    assert [found.session for found in bench.effects if isinstance(found, CloseSession)] == [old]


def test_a_lost_coordinator_has_no_endpoint(bench: Bench) -> None:
    bench.ensure()
    bench.coordinator()
    assert bench.image.coordinators["group", 0].port == 20_000
    bench.lose(("group", 0))
    assert bench.image.coordinators["group", 0].port == 0


def test_an_absent_coordinator_has_no_endpoint_after_the_grace_period(bench: Bench) -> None:
    bench.ensure()
    bench.coordinator()
    bench.start()
    bench.wait(GRACE_MS - 1)
    assert bench.image.coordinators["group", 0].port == 20_000
    bench.wait(1)
    assert bench.image.coordinators["group", 0].port == 0


def test_transaction_coordinators_have_a_compacted_topic_of_their_own(bench: Bench) -> None:
    bench.ensure(kind="transaction")
    assert bench.image.topics["__transaction_state"].config["cleanup.policy"] == "compact"
    assert "__consumer_offsets" not in bench.image.topics
    assert bench.coordinator(kind="transaction")[0] == 0
    with pytest.raises(CoordinatorNotAvailable):
        bench.coordinator(kind="group")


# ---------------------------------------------------------------- producer ids


def test_producer_ids_are_handed_out_once_across_lives_of_the_controller() -> None:
    bench = Bench().start()
    assert bench.producer_ids() == [0, 1000]
    bench.start()
    assert bench.producer_ids(5) == [1000, 5]
    assert bench.producer_ids(1) == [1005, 1]


@pytest.mark.parametrize("count", [0, -1, 100_001])
def test_an_absurd_number_of_producer_ids_is_refused(count: int) -> None:
    with pytest.raises(InvalidRequest):
        Bench().start().producer_ids(count)


@pytest.mark.parametrize("first", [0, 32_760, 65_530, 98_290, 5 * 32_768 - 6])
def test_each_coordinator_is_fenced_by_the_next(first: int) -> None:
    """Its producer epoch is higher, or its producer id another one; the last epoch of an id stays free to fence it."""
    ids = [0]
    held, held_epoch = first, first % PRODUCER_EPOCHS
    for epoch in range(first + 1, first + 40_000):
        producer_epoch = epoch % PRODUCER_EPOCHS
        assert producer_epoch < 32_767
        if keeps_producer(held, epoch):
            assert producer_epoch > held_epoch
        else:
            ids.append(epoch)
        held, held_epoch = epoch, producer_epoch
    assert len(ids) <= 16, "few ids are used up"
