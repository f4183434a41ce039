"""Random histories of a cluster: the controller's claims hold for every order of events.

The bench checks after every step: the machine's own claims, one leader (broker and incarnation) for each leader epoch,
the log replayed and the snapshot equal to the image, each prefix of the step's records legal.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raylog.base.errors import RaylogError
from raylog.base.ids import NO_LEADER, TopicPartition
from raylog.core.metadata.records import PartitionChanged, PartitionsAdded, TopicCreated
from raylog.protocol.admin import (
    AlterClusterConfigRequest,
    AlterTopicConfigRequest,
    DeleteTopicRequest,
    ElectedPartition,
    ElectLeadersRequest,
    ResumeBrokerRequest,
    StopBrokerRequest,
)
from tests.unit.core.controller.bench import Bench

brokers = st.integers(1, 4)
partitions = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 1))


class ClusterLife(RuleBasedStateMachine):
    """Brokers, replicas and coordinators start and end; clients send requests; the controller dies now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()

    @initialize()
    def begin(self) -> None:
        self.bench.start()
        for broker in (1, 2, 3):
            self.bench.broker(broker)
        self.bench.create("a", assignment=[[1, 2, 3], [2, 3, 1]])

    def _known(self, partition: TopicPartition) -> bool:
        return self.bench.image.partition(partition) is not None

    @rule(broker=brokers, fresh=st.booleans(), directory=st.sampled_from(["", "", "", "new"]))
    def a_broker_comes(self, broker: int, fresh: bool, directory: str) -> None:
        life = -1 if fresh else self.bench.lives.get(("broker", broker), -1)
        try:
            self.bench.broker(broker, incarnation=life, directory=directory)
        except RaylogError:
            pass  # an earlier incarnation, or a second directory: refused without a change

    @rule(broker=brokers, partition=partitions, fresh=st.booleans(), log_lost=st.sampled_from([False] * 5 + [True]))
    def a_replica_comes(self, broker: int, partition: TopicPartition, fresh: bool, log_lost: bool) -> None:
        if self._known(partition):
            life = -1 if fresh else self.bench.lives.get((partition, broker), -1)
            try:
                self.bench.replica(broker, partition, incarnation=life, log_lost=log_lost)
            except RaylogError:
                pass  # an earlier incarnation, or a broker without a replica

    @precondition(lambda self: self.bench.sessions)
    @rule(data=st.data())
    def a_connection_breaks(self, data: st.DataObject) -> None:
        self.bench.lose(data.draw(st.sampled_from(sorted(self.bench.sessions, key=repr))))

    @precondition(lambda self: self.bench.sessions)
    @rule(data=st.data())
    def a_member_falls_silent(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.bench.sessions, key=repr)))
        self.bench.silent.add(self.bench.sessions[member])

    @rule(ms=st.sampled_from([100, 2_000, 3_500, 7_000]))
    def time_passes(self, ms: int) -> None:
        self.bench.wait(ms, tick_ms=1_000)

    @rule(partition=partitions, members=st.sets(brokers), stale=st.sampled_from([0, 0, 0, 1]), caller=brokers)
    def an_isr_is_proposed(self, partition: TopicPartition, members: set[int], stale: int, caller: int) -> None:
        if not self._known(partition):
            return
        state = self.bench.state(partition)
        leader = state.leader if state.leader != NO_LEADER else caller
        named = sorted((members & set(state.replicas)) | {leader})
        if leader in state.replicas:
            try:
                self.bench.isr(leader, named, partition=partition, partition_epoch=state.partition_epoch - stale)
            except RaylogError:
                assert self.bench.state(partition) == state, "a refused proposal changes nothing"
            else:
                assert not stale, "a proposal that rests on an older state loses"
                after = self.bench.state(partition)
                assert set(after.isr) == set(named) & set(after.replicas), "a move that is complete takes some out"

    @rule(topic=st.sampled_from(["a", "b"]), factor=st.integers(1, 3))
    def a_topic_is_created(self, topic: str, factor: int) -> None:
        try:
            self.bench.create(topic, partitions=2, replication_factor=factor)
        except RaylogError:
            pass  # it exists, or there are too few brokers

    @rule(topic=st.sampled_from(["b", "b", "a"]))
    def a_topic_is_deleted(self, topic: str) -> None:
        bench = self.bench
        try:
            bench.call(DeleteTopicRequest(topic=topic))
        except RaylogError:
            return
        bench.sessions = {member: number for member, number in bench.sessions.items() if number not in bench.closed}
        bench.lives = {
            member: life
            for member, life in bench.lives.items()
            if not (isinstance(member, tuple) and isinstance(member[0], TopicPartition) and member[0].topic == topic)
        }

    @rule(partition=partitions, wanted=st.one_of(st.none(), st.lists(brokers, max_size=3)))
    def a_partition_is_moved(self, partition: TopicPartition, wanted: list[int] | None) -> None:
        before = self.bench.image.partition(partition)
        try:
            self.bench.reassign(wanted, partition)
        except RaylogError:
            assert self.bench.image.partition(partition) == before, "a refused move changes nothing"
            return
        state = self.bench.state(partition)
        if wanted is not None:
            assert state.target == tuple(wanted)
            assert (state.replicas == state.target) == (not state.removing)
        else:
            assert not state.adding
            assert not state.removing

    @rule(topic=st.sampled_from(["a", "b"]), total=st.integers(1, 3))
    def a_topic_grows(self, topic: str, total: int) -> None:
        try:
            self.bench.grow(total, topic)
        except RaylogError:
            pass  # there is no such topic, it has as many already, or there are too few brokers

    @rule(partition=partitions, unclean=st.booleans())
    def leaders_are_elected(self, partition: TopicPartition, unclean: bool) -> None:
        bench = self.bench
        if not self._known(partition):
            return
        before = bench.state(partition)
        [row] = bench.call(ElectLeadersRequest([ElectedPartition(*partition)], unclean))
        assert isinstance(row, list)
        after = bench.state(partition)
        if before.adding or before.removing:
            return  # the election may have completed the move, which ends another epoch
        assert (row[2] == 0) == (after.leader_epoch == before.leader_epoch + 1)
        if row[2] == 0 and not unclean:
            assert after.leader == after.replicas[0]
            assert after.isr == before.isr

    @rule(broker=brokers, force=st.booleans())
    def a_broker_is_stopped(self, broker: int, force: bool) -> None:
        bench = self.bench
        try:
            bench.call(StopBrokerRequest(broker=broker, force=force))
        except RaylogError:
            return  # unknown, or partitions would be unavailable without it
        for state in bench.image.partitions():
            assert state.leader != broker

    @rule(broker=brokers)
    def a_broker_is_resumed(self, broker: int) -> None:
        bench = self.bench
        try:
            bench.call(ResumeBrokerRequest(broker=broker))
        except RaylogError:
            pass  # it never registered

    @rule(topic=st.sampled_from(["a", "b"]), unclean=st.booleans())
    def a_topic_is_configured(self, topic: str, unclean: bool) -> None:
        bench = self.bench
        change = {"unclean.leader.election.enable": unclean}
        try:
            bench.call(AlterTopicConfigRequest(topic=topic, set=change, delete=()))
        except RaylogError:
            pass  # there is no such topic

    @rule(
        values=st.dictionaries(
            st.sampled_from(["group.max.size", "num.partitions", "broker.session.timeout.ms", "group.max.groups"]),
            st.sampled_from(["", "3000", "4000", "no number"]),
        )
    )
    def settings_of_the_cluster_are_altered(self, values: dict[str, str]) -> None:
        bench = self.bench
        before = bench.image.values
        event = AlterClusterConfigRequest(
            set={key: value for key, value in values.items() if value},
            delete=[key for key in values if not values[key]],
        )
        try:
            bench.call(event)
        except RaylogError:
            assert bench.image.values == before
            assert "no number" in values.values()
            return
        kept = {key: value for key, value in before.altered.items() if key not in values}
        assert bench.image.altered_config == {**kept, **{key: value for key, value in values.items() if value}}

    @rule(fresh=st.booleans())
    def a_coordinator_is_wanted_and_comes(self, fresh: bool) -> None:
        try:
            self.bench.ensure()
            self.bench.coordinator(epoch=-1 if fresh else self.bench.lives.get(("group", 0), -1))
        except RaylogError:
            pass  # no broker is online

    @rule(count=st.integers(1, 9))
    def producer_ids_are_wanted(self, count: int) -> None:
        [first, _] = self.bench.producer_ids(count)
        assert self.bench.image.next_producer_id == first + count  # type: ignore[operator]

    @rule()
    def the_controller_restarts(self) -> None:
        self.bench.start()

    @invariant()
    def the_history_of_each_partition_is_a_line(self) -> None:
        """Each change of a partition raises its epoch by one, and its leader epoch by one or not at all."""
        last: dict[tuple[str, int], tuple[int, int]] = {}
        replicas: dict[tuple[str, int], tuple[int, ...]] = {}
        for record in self.bench.log:
            if isinstance(record, TopicCreated):
                last = {key: epochs for key, epochs in last.items() if key[0] != record.topic}
                last |= {(record.topic, number): (0, 0) for number in range(len(record.partitions))}
                replicas |= {(record.topic, number): row for number, row in enumerate(record.partitions)}
            if isinstance(record, PartitionsAdded):
                first = 1 + max(number for topic, number in last if topic == record.topic)
                last |= {(record.topic, first + number): (0, 0) for number in range(len(record.partitions))}
                replicas |= {(record.topic, first + number): row for number, row in enumerate(record.partitions)}
            if isinstance(record, PartitionChanged):
                epoch, leader_epoch = last[record.topic, record.partition]
                assert record.partition_epoch == epoch + 1
                assert record.leader_epoch in (leader_epoch, leader_epoch + 1)
                held = replicas[record.topic, record.partition]
                if set(held) - set(record.replicas):
                    ended = record.leader_epoch > leader_epoch or record.leader == NO_LEADER
                    assert ended, "a record that takes a replica away ends the leader epoch"
                replicas[record.topic, record.partition] = record.replicas
                last[record.topic, record.partition] = (record.partition_epoch, record.leader_epoch)


TestClusterLife = ClusterLife.TestCase
TestClusterLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class CutLogLife(ClusterLife):
    """The same, but a restart of the controller loses its last records: no effect of them left before the sync."""

    @rule(lost=st.integers(1, 3))
    def the_controller_dies_before_the_sync(self, lost: int) -> None:
        """Lose the tail of the last step."""
        if self.bench.last_written > 0:
            self.bench.start(lose=min(lost, self.bench.last_written))


TestCutLogLife = CutLogLife.TestCase
TestCutLogLife.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
