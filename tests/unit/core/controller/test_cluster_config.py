"""The cluster's settings are altered while it runs: which changes count when, and what is refused."""

from typing import Any

import pytest

from raylog.base.errors import InvalidConfig, InvalidPartitions, RaylogError
from raylog.core.configuration.altering import value_of
from raylog.core.configuration.config_key import Change
from raylog.core.configuration.config_keys import CLUSTER_KEYS
from raylog.core.controller.controller import ControllerMachine
from raylog.core.controller.events import (
    SendClusterConfig,
)
from raylog.core.controller.internal_topics import ON_FIRST_USE
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import ClusterAltered, record_from_wire
from raylog.protocol.admin import AlterClusterConfigRequest, DescribeConfigsRequest, EnsureInternalTopicRequest
from tests.unit.core.controller.bench import AWAKE, DEFAULTS, Bench, running_topic, three_brokers

SESSION, BEAT = "broker.session.timeout.ms", "broker.heartbeat.interval.ms"
THROTTLE = "follower.replication.throttled.rate"
Rows = dict[str, list[Any]]


def alter(bench: Bench, settings: dict[str, Any] | None = None, *delete: str, validate_only: bool = False) -> Rows:
    event = AlterClusterConfigRequest(set=settings or {}, delete=delete, validate_only=validate_only)
    rows: list[Any] = bench.call(event)
    return {row[0]: row[1:3] + row[6:] for row in rows}


def described(bench: Bench, name: str) -> list[Any]:
    event = DescribeConfigsRequest(topic=None)
    rows: list[Any] = bench.call(event)
    (row,) = [row for row in rows if row[0] == name]
    return list(row[1:3] + row[6:])


# ---------------------------------------------------------------- what counts


def test_an_alteration_counts_at_once_and_in_later_lives() -> None:
    bench = three_brokers()
    assert described(bench, "num.partitions") == ["2", "start", "at once", ""]
    assert alter(bench, {"num.partitions": 5}) == {"num.partitions": ["5", "altered", "at once", ""]}
    bench.create("flights", partitions=-1)
    assert len(bench.image.topics["flights"].partitions) == 5
    bench.start()
    assert described(bench, "num.partitions") == ["5", "altered", "at once", ""]


def test_an_alteration_ranks_above_what_any_start_gives() -> None:
    bench = Bench().start({"group.max.size": "9"}, of="a")
    alter(bench, {"group.max.size": 7})
    bench.start({"group.max.size": "8"}, of="b")
    assert described(bench, "group.max.size") == ["7", "altered", "at once", ""]
    assert alter(bench, {}, "group.max.size") == {"group.max.size": ["8", "start", "at once", ""]}
    assert bench.image.altered_config == {}


def test_an_alteration_that_ends_leaves_the_default_without_a_given_value() -> None:
    bench = three_brokers()
    alter(bench, {"group.max.size": 7})
    assert alter(bench, {}, "group.max.size") == {
        "group.max.size": [CLUSTER_KEYS["group.max.size"].default, "default", "at once", ""]
    }


def test_what_needs_a_start_waits_for_the_next_one_of_the_cluster() -> None:
    bench = Bench().start(of="a")
    assert alter(bench, {SESSION: 9000, "group.max.size": 7}) == {
        SESSION: ["2500", "default", "at the next start", "9000"],
        "group.max.size": ["7", "altered", "at once", ""],
    }
    assert SESSION not in bench.start(of="a").image.config, "another life of the controller is no start of the cluster"
    assert described(bench, SESSION) == ["2500", "default", "at the next start", "9000"]
    assert bench.start(of="b").image.config[SESSION] == "9000"
    assert described(bench, SESSION) == ["9000", "altered", "at the next start", ""]
    assert alter(bench, {}, SESSION) == {SESSION: ["9000", "altered", "at the next start", "2500"]}
    assert SESSION not in bench.start(of="c").image.config


def test_what_waited_may_be_taken_back() -> None:
    bench = Bench().start({SESSION: "3000"}, of="a")
    alter(bench, {SESSION: 9000})
    assert alter(bench, {}, SESSION) == {SESSION: ["3000", "start", "at the next start", ""]}
    assert bench.start({SESSION: "3000"}, of="b").image.config[SESSION] == "3000"


def test_the_same_alteration_again_writes_nothing() -> None:
    bench = three_brokers()
    alter(bench, {"group.max.size": 7, SESSION: 9000})
    before = len(bench.log)
    alter(bench, {"group.max.size": "7", SESSION: "9000"}, "num.partitions")
    assert len(bench.log) == before


def test_a_check_alters_nothing() -> None:
    bench = three_brokers()
    before = len(bench.log)
    assert alter(bench, {"group.max.size": 7}, validate_only=True) == {
        "group.max.size": ["7", "altered", "at once", ""]
    }
    assert len(bench.log) == before


def test_a_snapshot_has_where_each_value_comes_from() -> None:
    bench = Bench().start({"group.max.size": "9"}, of="a")
    alter(bench, {"group.max.size": 7, SESSION: 9000})
    image = bench.image
    assert MetadataImage.restore(image.version, image.to_records()) == image
    (altered,) = [record for record in image.to_records() if isinstance(record, ClusterAltered)]
    assert record_from_wire(altered.to_wire()) == altered


def test_the_throttle_of_a_move_stays_when_a_start_gave_another() -> None:
    bench = running_topic()
    bench.reassign_all([], throttle=2_000_000)
    bench.start({THROTTLE: "1000"})
    assert described(bench, THROTTLE)[:2] == ["2000000", "altered"]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "delete", "message"),
    [
        ({"group.max.sise": 7}, (), "did you mean 'group.max.size'"),
        ({}, ("group.max.sise",), "did you mean 'group.max.size'"),
        ({"retention.ms": 7}, (), "retention.ms is a key of topics"),
        ({"group.max.size": "many"}, (), "is a whole number, not 'many'"),
        ({"group.max.size": 0}, (), "at least 1, not 0"),
        ({"metrics.port": 70_000}, (), "0 to 65535, not 70000"),
        ({"num.partitions": 3, "group.max.size": 0}, (), "at least 1, not 0"),
        ({"group.max.size": 7}, ("group.max.size",), "both set and deleted"),
        ({"group.min.session.timeout.ms": 1_900_000}, (), "is above group.max.session.timeout.ms=1800000"),
        ({BEAT: 2_000}, (), "must be at least twice broker.heartbeat.interval.ms=2000"),
        ({"metadata.voters.max": 2}, (), "is an odd number"),
        ({"replica.sleep.after.ms": 5}, (), "it is at least 1000"),
        (
            {"listeners": "RAYLOG://:9092"},
            (),
            r"run `raylog stop`, then `raylog start --config listeners=RAYLOG://:9092",
        ),
    ],
)
def test_a_refused_alteration_changes_nothing(change: dict[str, Any], delete: tuple[str, ...], message: str) -> None:
    bench = three_brokers()
    alter(bench, {"group.max.groups": 5})
    before, records = bench.image.values, len(bench.log)
    with pytest.raises(InvalidConfig, match=message):
        alter(bench, change, *delete)
    assert (bench.image.values, len(bench.log)) == (before, records)


def test_two_changes_that_need_each_other_go_together() -> None:
    bench = three_brokers()
    alter(bench, {BEAT: 2_000, SESSION: 6_000})
    with pytest.raises(InvalidConfig, match="must be at least twice"):
        alter(bench, {}, SESSION)
    alter(bench, {}, SESSION, BEAT)


def test_a_start_that_does_not_go_with_an_alteration_is_refused() -> None:
    bench = three_brokers()
    alter(bench, {"group.max.session.timeout.ms": 7_000})
    with pytest.raises(InvalidConfig, match=r"group\.min\.session\.timeout\.ms=8000 is above"):
        bench.start({"group.min.session.timeout.ms": "8000"})


def test_what_a_topic_was_created_with_is_altered_until_then() -> None:
    bench = three_brokers()
    alter(bench, {"offsets.topic.num.partitions": 3, "offsets.topic.replication.factor": 2})
    bench.ensure()
    topic = bench.image.topics["__consumer_offsets"]
    assert (len(topic.partitions), topic.partitions[0].replication_factor) == (3, 2)
    with pytest.raises(InvalidConfig, match="__consumer_offsets exists"):
        alter(bench, {"offsets.topic.num.partitions": 4})
    with pytest.raises(InvalidConfig, match="__consumer_offsets exists"):
        alter(bench, {}, "offsets.topic.num.partitions")
    alter(bench, {"offsets.topic.num.partitions": 3})
    assert described(bench, "offsets.topic.num.partitions") == ["3", "altered", "fixed", ""]
    alter(bench, {"offsets.topic.replication.factor": 1})  # the other topics that it is for do not exist yet
    for name in ON_FIRST_USE:
        bench.call(EnsureInternalTopicRequest(topic=name))
    assert bench.image.topics["__scheduled"].partitions[0].replication_factor == 1
    with pytest.raises(InvalidConfig, match="`raylog topic reassign`"):
        alter(bench, {"offsets.topic.replication.factor": 3})


def test_sleepers_that_shall_sleep_no_more_wake_where_there_is_room() -> None:
    bench = Bench().start({"replica.sleep.after.ms": "60000"})
    for broker in (1, 2, 3):
        bench.broker(broker)
    bench.create("flights", partitions=2)
    assert bench.state().asleep is not None
    with pytest.raises(InvalidPartitions, match="may have 1"):
        alter(bench, {"replica.awake.max": 1, **AWAKE})
    assert bench.image.settings.replica_awake_max == -1
    alter(bench, {"replica.awake.max": 100, **AWAKE})
    assert bench.state().asleep is None


# ---------------------------------------------------------------- readers


def test_a_shorter_interval_counts_for_the_check_that_is_awaited() -> None:
    bench = running_topic()
    bench.lose_replica(1)
    bench.replica(1)
    bench.isr(2, [1, 2])
    bench.wait(10_000, tick_ms=1_000)
    assert bench.summary()[0] == 2
    alter(bench, {"leader.imbalance.check.interval.seconds": 1})
    bench.wait(1_000, tick_ms=1_000)
    assert bench.summary()[0] == 1


def test_coordinators_are_sent_what_counts_now() -> None:
    bench = three_brokers()
    bench.ensure()
    assert bench.coordinator()[3] == DEFAULTS
    alter(bench, {"group.max.size": 7})
    (sent,) = [effect for effect in bench.effects if isinstance(effect, SendClusterConfig)]
    assert (sent.session, sent.config) == (bench.sessions["group", 0], {**DEFAULTS, "group.max.size": "7"})
    assert bench.coordinator()[3] == sent.config
    alter(bench, {SESSION: 9_000})
    assert not [effect for effect in bench.effects if isinstance(effect, SendClusterConfig)]


def test_replicas_register_with_what_counts_now() -> None:
    bench = running_topic()
    alter(bench, {"replica.lag.time.max.ms": 700})
    assert bench.replica(2)[4] == {**DEFAULTS, "replica.lag.time.max.ms": "700"}


def test_every_key_says_what_to_do_where_a_change_is_refused() -> None:
    for key in CLUSTER_KEYS.values():
        is_refused = key.change in (Change.START_ONLY, Change.UNTIL_CREATED)
        assert bool(key.instead) == is_refused, key.name
        assert bool(key.fixed_by) == (key.change is Change.UNTIL_CREATED), key.name
    fixed_by = CLUSTER_KEYS["offsets.topic.replication.factor"].fixed_by
    assert set(fixed_by) == {"__consumer_offsets", *ON_FIRST_USE}


@pytest.mark.parametrize("key", CLUSTER_KEYS.values(), ids=lambda key: key.name)
def test_every_key_is_altered_as_its_class_says(key: Any) -> None:
    """A legal value other than the default, alone: it counts now, or at the next start, or is refused."""
    bench = Bench().start(of="a")
    value = another_value(key)
    if key.change is Change.START_ONLY:
        with pytest.raises(RaylogError, match="is not altered while the cluster runs"):
            alter(bench, {key.name: value})
        return
    alter(bench, {key.name: value})
    now = value_of(key.name, bench.image.config)
    assert (now == value) == (key.change is not Change.NEXT_START)
    attribute = getattr(bench.image.settings, key.name.replace(".", "_"))
    assert str(attribute).lower() == now
    assert value_of(key.name, bench.start(of="b").image.config) == value


def another_value(key: Any) -> str:
    """A legal value of a cluster's key besides its default, which goes with the defaults of the others."""
    if key.kind == "bool":
        return "false" if key.default == "true" else "true"
    if key.kind == "choice":
        return str(next(choice for choice in key.choices if choice != key.default))
    if key.kind == "listeners":
        return "RAYLOG://example:9092"
    special = {"metadata.voters.max": "5", SESSION: "9000", BEAT: "400", "replica.sleep.after.ms": "5000"}
    return special.get(key.name) or str(
        int(key.default) - 1 if int(key.default) > key.minimum else int(key.default) + 1
    )


def test_the_machine_is_given_the_start_that_it_belongs_to() -> None:
    machine = Bench().start(of="a").machine
    assert isinstance(machine, ControllerMachine)
    assert machine.image.start == "a"
